"""Word problems with numeric answers, in one to six steps, with made-up people and goods."""

from __future__ import annotations

import random
from collections.abc import Callable

from heddle.types import Json

SEED = 11
PER_TEMPLATE = 6

_NAMES = ("Ada", "Ben", "Cleo", "Dov", "Esi", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kaya", "Leo")
_GOODS = ("pens", "apples", "books", "cups", "stamps", "beads", "cards", "shells", "bolts", "tiles")

Problem = tuple[str, float]
"""A question and its answer."""


def math_tasks(seed: int = SEED) -> list[dict[str, Json]]:
    """The lines of ``math.jsonl``: templates in order of their number of steps."""
    rng = random.Random(seed)
    lines: list[dict[str, Json]] = []
    for template in _TEMPLATES:
        seen: set[str] = set()
        while len(seen) < PER_TEMPLATE:
            question, answer = template(rng)
            if question in seen:
                continue
            seen.add(question)
            number = f"{len(lines) + 1:03d}"
            lines.append({"prompt_id": f"math-{number}", "task": {"question": question, "answer": answer}})
    return lines


# One step


def _sum(rng: random.Random) -> Problem:
    name, goods = rng.choice(_NAMES), rng.choice(_GOODS)
    first, second = rng.randint(12, 90), rng.randint(12, 90)
    return f"{name} has {first} {goods} and buys {second} more. How many {goods} now?", first + second


def _difference(rng: random.Random) -> Problem:
    name, goods = rng.choice(_NAMES), rng.choice(_GOODS)
    start, lost = rng.randint(60, 200), rng.randint(11, 59)
    return f"{name} had {start} {goods} and gave away {lost}. How many are left?", start - lost


def _product(rng: random.Random) -> Problem:
    goods = rng.choice(_GOODS)
    boxes, each = rng.randint(6, 40), rng.randint(6, 40)
    return f"There are {boxes} boxes with {each} {goods} each. How many {goods}?", boxes * each


def _share(rng: random.Random) -> Problem:
    goods = rng.choice(_GOODS)
    people, each = rng.randint(3, 12), rng.randint(5, 40)
    return f"{people} people share {people * each} {goods} equally. How many each?", each


def _percent(rng: random.Random) -> Problem:
    percent, whole = rng.choice((5, 10, 15, 20, 25, 40, 75)), rng.randint(2, 45) * 20
    return f"What is {percent} percent of {whole}?", percent * whole / 100


# Two and three steps


def _price_with_change(rng: random.Random) -> Problem:
    name, goods = rng.choice(_NAMES), rng.choice(_GOODS)
    count, price = rng.randint(3, 12), rng.randint(2, 9)
    paid = count * price + rng.randint(1, 40)
    question = (
        f"{name} buys {count} {goods} at ${price} each and pays with ${paid}. How much change in dollars?"
    )
    return question, paid - count * price


def _two_prices(rng: random.Random) -> Problem:
    first, second = rng.sample(_GOODS, 2)
    a, b, price_a, price_b = (rng.randint(2, 12) for _ in range(4))
    question = f"What do {a} {first} at ${price_a} and {b} {second} at ${price_b} cost together, in dollars?"
    return question, a * price_a + b * price_b


def _average(rng: random.Random) -> Problem:
    mean = rng.randint(20, 60)
    spread, offset = rng.randint(1, 9), rng.randint(1, 9)
    scores = (mean - spread, mean + spread + offset, mean - offset)
    return f"{rng.choice(_NAMES)} scored {scores[0]}, {scores[1]} and {scores[2]}. What is the average?", mean


def _trip(rng: random.Random) -> Problem:
    speed, hours, more = rng.randint(30, 90), rng.randint(2, 6), rng.randint(10, 80)
    question = f"A train goes {hours} hours at {speed} km/h, then {more} km more. How many km in all?"
    return question, speed * hours + more


def _discount(rng: random.Random) -> Problem:
    price, percent = rng.randint(2, 20) * 20, rng.choice((10, 20, 25, 30, 40))
    question = f"A coat costs ${price}. It gets {percent} percent cheaper. What does it cost now, in dollars?"
    return question, price * (100 - percent) / 100


def _remaining_boxes(rng: random.Random) -> Problem:
    goods = rng.choice(_GOODS)
    boxes, each, sold = rng.randint(5, 15), rng.randint(6, 20), rng.randint(10, 29)
    question = f"A shop has {boxes} boxes of {each} {goods}. It sells {sold} {goods}. How many are left?"
    return question, boxes * each - sold


# Four to six steps


def _savings(rng: random.Random) -> Problem:
    name = rng.choice(_NAMES)
    weeks, earned, spent, start = (
        rng.randint(4, 12),
        rng.randint(30, 60),
        rng.randint(5, 25),
        rng.randint(20, 90),
    )
    question = (
        f"{name} has ${start}. Each week {name} earns ${earned} and spends ${spent}. "
        f"After {weeks} weeks {name} gives half away. How many dollars are left?"
    )
    return question, (start + weeks * (earned - spent)) / 2


def _garden(rng: random.Random) -> Problem:
    length, width, price = rng.randint(8, 30), rng.randint(5, 20), rng.randint(2, 6)
    question = (
        f"A garden is {length} m by {width} m. A fence costs ${price} per m, grass $2 per square m. "
        "What do the fence around it and the grass cost together, in dollars?"
    )
    return question, 2 * (length + width) * price + 2 * length * width


def _growth(rng: random.Random) -> Problem:
    start, times, taken = rng.randint(2, 9), rng.randint(3, 6), rng.randint(1, 4)
    amount = start
    for _ in range(times):
        amount = amount * 3 - taken
    question = (
        f"A jar holds {start} cells. Each hour they triple, then {taken} are taken out. "
        f"How many cells after {times} hours?"
    )
    return question, amount


def _multiples(rng: random.Random) -> Problem:
    top, step = rng.randint(60, 300), rng.randint(3, 9)
    return f"What is the sum of all multiples of {step} from 1 to {top}?", sum(range(step, top + 1, step))


def _compound(rng: random.Random) -> Problem:
    amount, percent, years = rng.randint(2, 9) * 1000, rng.choice((10, 20, 50)), rng.randint(2, 3)
    total = amount * (100 + percent) ** years / 100**years
    question = f"${amount} grow by {percent} percent a year. How many dollars are there after {years} years?"
    return question, total


_TEMPLATES: tuple[Callable[[random.Random], Problem], ...] = (
    _sum,
    _difference,
    _product,
    _share,
    _percent,
    _price_with_change,
    _two_prices,
    _average,
    _trip,
    _discount,
    _remaining_boxes,
    _savings,
    _garden,
    _growth,
    _multiples,
    _compound,
)
