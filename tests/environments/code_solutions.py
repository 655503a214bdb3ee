"""Reference solutions of the ``code`` tasks, by entry point. They never leave the tests."""

from __future__ import annotations


def total(xs: list[int]) -> int:
    return sum(xs)


def largest(xs: list[int]) -> int:
    return max(xs)


def smallest(xs: list[int]) -> int:
    return min(xs)


def double(n: int) -> int:
    return 2 * n


def square(n: int) -> int:
    return n * n


def is_even(n: int) -> bool:
    return n % 2 == 0


def add(a: int, b: int) -> int:
    return a + b


def multiply(a: int, b: int) -> int:
    return a * b


def last_item(xs: list[int]) -> int:
    return xs[-1]


def reverse_text(s: str) -> str:
    return s[::-1]


def shout(s: str) -> str:
    return s.upper() + "!"


def length(s: str) -> int:
    return len(s)


def first_letter(s: str) -> str:
    return s[0]


def greet(name: str) -> str:
    return "Hello, " + name


def absolute(n: int) -> int:
    return abs(n)


def average(xs: list[float]) -> float:
    return sum(xs) / len(xs)


def count_even(xs: list[int]) -> int:
    return sum(x % 2 == 0 for x in xs)


def only_even(xs: list[int]) -> list[int]:
    return [x for x in xs if x % 2 == 0]


def squares(n: int) -> list[int]:
    return [i * i for i in range(1, n + 1)]


def count_vowels(s: str) -> int:
    return sum(c in "aeiou" for c in s.lower())


def is_palindrome(s: str) -> bool:
    return s == s[::-1]


def factorial(n: int) -> int:
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def celsius(f: float) -> float:
    return (f - 32) * 5 / 9


def remove_spaces(s: str) -> str:
    return s.replace(" ", "")


def count_words(s: str) -> int:
    return len(s.split())


def longest_word(s: str) -> str:
    return max(s.split(), key=len)


def unique(xs: list[int]) -> list[int]:
    return list(dict.fromkeys(xs))


def second_largest(xs: list[int]) -> int:
    return sorted(set(xs))[-2]


def product(xs: list[int]) -> int:
    result = 1
    for x in xs:
        result *= x
    return result


def digit_sum(n: int) -> int:
    return sum(int(d) for d in str(n))


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def lcm(a: int, b: int) -> int:
    x, y = a, b
    while y:
        x, y = y, x % y
    return a * b // x


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


def fizzbuzz(n: int) -> str:
    if n % 15 == 0:
        return "FizzBuzz"
    if n % 3 == 0:
        return "Fizz"
    return "Buzz" if n % 5 == 0 else str(n)


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def initials(name: str) -> str:
    return "".join(word[0].upper() for word in name.split())


def repeat(s: str, n: int) -> str:
    return s * n


def join_dash(words: list[str]) -> str:
    return "-".join(words)


def swap_ends(xs: list[int]) -> list[int]:
    return [xs[-1], *xs[1:-1], xs[0]] if len(xs) > 1 else xs


def running_total(xs: list[int]) -> list[int]:
    totals, current = [], 0
    for x in xs:
        current += x
        totals.append(current)
    return totals


def differences(xs: list[int]) -> list[int]:
    return [xs[i] - xs[i - 1] for i in range(1, len(xs))]


def letter_counts(s: str) -> dict[str, int]:
    return {c: s.count(c) for c in s}


def most_common(xs: list[int]) -> int:
    return max(xs, key=xs.count)


def flatten(xss: list[list[int]]) -> list[int]:
    return [x for xs in xss for x in xs]


def transpose(rows: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]


def rotate(xs: list[int], k: int) -> list[int]:
    k = k % len(xs) if xs else 0
    return xs[k:] + xs[:k]


def chunks(xs: list[int], n: int) -> list[list[int]]:
    return [xs[i : i + n] for i in range(0, len(xs), n)]


def to_binary(n: int) -> str:
    return bin(n)[2:]


def from_binary(s: str) -> int:
    return int(s, 2)


def caesar(s: str, k: int) -> str:
    return "".join(chr((ord(c) - 97 + k) % 26 + 97) for c in s)


def is_anagram(a: str, b: str) -> bool:
    return sorted(a) == sorted(b)


def balanced(s: str) -> bool:
    depth = 0
    for c in s:
        depth += 1 if c == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def to_roman(n: int) -> str:
    out = ""
    for v, r in [(50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]:
        while n >= v:
            out += r
            n -= v
    return out


def run_lengths(s: str) -> list[list[str | int]]:
    runs: list[tuple[str, int]] = []
    for c in s:
        if runs and runs[-1][0] == c:
            runs[-1] = (c, runs[-1][1] + 1)
        else:
            runs.append((c, 1))
    return [list(run) for run in runs]


def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    return sorted(a + b)


def binary_search(xs: list[int], x: int) -> int:
    return xs.index(x) if x in xs else -1


def collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def prime_factors(n: int) -> list[int]:
    factors, d = [], 2
    while n > 1:
        while n % d == 0:
            factors.append(d)
            n //= d
        d += 1
    return factors


def max_profit(prices: list[int]) -> int:
    best, low = 0, prices[0]
    for p in prices:
        low = min(low, p)
        best = max(best, p - low)
    return best


def max_subarray(xs: list[int]) -> int:
    best = current = xs[0]
    for x in xs[1:]:
        current = max(x, current + x)
        best = max(best, current)
    return best


def two_sum(xs: list[int], target: int) -> list[int]:
    for i in range(len(xs)):
        for j in range(i + 1, len(xs)):
            if xs[i] + xs[j] == target:
                return [i, j]
    return []


def common_prefix(words: list[str]) -> str:
    prefix = words[0]
    while not all(w.startswith(prefix) for w in words):
        prefix = prefix[:-1]
    return prefix


def title_case(s: str) -> str:
    return " ".join(w.capitalize() for w in s.split())


def invert(d: dict[str, str]) -> dict[str, str]:
    return {v: k for k, v in d.items()}


def pascal_row(n: int) -> list[int]:
    row = [1]
    for _ in range(n):
        row = [1, *(row[i] + row[i + 1] for i in range(len(row) - 1)), 1]
    return row


def coin_ways(amount: int, coins: list[int]) -> int:
    ways = [1] + [0] * amount
    for c in coins:
        for a in range(c, amount + 1):
            ways[a] += ways[a - c]
    return ways[amount]


def edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last = row
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, last[j] + 1, last[j - 1] + (x != y)))
    return row[-1]
