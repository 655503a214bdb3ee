"""``code``: tests really run, attempts to fool them fail, failures are told."""

from __future__ import annotations

import pytest
from episodes import PlainRunner, Play, ScriptedRunner, run_program, tool_result

from heddle.agent.ports import ToolInvocation, ToolResult
from heddle.environments.code import CodeEnvironment, CodeTask, judge
from heddle.environments.programs import call_and_report, equal, read_report
from heddle.types import Json, StopReason

TASK: dict[str, Json] = {
    "prompt": "Write add(a, b): return the sum of a and b.",
    "entry_point": "add",
    "tests": [
        {"args": [1, 2], "expected": 3},
        {"args": [0, 0], "expected": 0},
        {"args": [-5, 4], "expected": -1},
    ],
}
GOOD = "def add(a, b):\n    return a + b"


def play() -> Play:
    """An episode whose tests run in a plain subprocess."""
    return Play(CodeEnvironment(), TASK, PlainRunner())


async def test_passing_all_tests_ends_the_episode() -> None:
    """A right function is worth 1 at once."""
    episode = play()
    outcome = await episode.turn(("run_tests", {"code": GOOD}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED
    assert outcome.messages[0].content == "Passed 3 of 3."
    expected = (1.0, {"passed": 3, "tests": 3, "fraction": 1.0})
    assert expected == await episode.reward(StopReason.TOOL_STOPPED)


async def test_failures_are_told_with_what_came_and_what_was_expected() -> None:
    """The model sees each failing call, its value and the value wanted, and may go on."""
    episode = play()
    outcome = await episode.turn(("run_tests", {"code": "def add(a, b):\n    return a - b"}))

    expected = "Passed 1 of 3.\nadd(1, 2): got -1, expected 3\nadd(-5, 4): got -9, expected -1"
    assert expected == outcome.messages[0].content
    assert outcome.stop_reason is None
    value, info = await episode.reward(StopReason.MAX_STEPS)
    assert value == 0.0
    assert info == {"passed": 1, "tests": 3, "fraction": 1 / 3}


@pytest.mark.parametrize(
    "code",
    [
        "print('Passed 3 of 3.')",
        "print('all tests passed'); exit(0)",
        "import os\nprint('passed', flush=True)\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        "def add(a, b):\n    exit()",
        "class Anything:\n    def __eq__(self, other): return True\ndef add(a, b): return Anything()",
        "class Anything(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Anything(7)",
        "def add(a, b): return True",
        'import json\njson.dumps = lambda *a, **k: \'[0, "value", 3, "3"]\'\ndef add(a, b): return 3',
        "import sys\nsys.stdout.write = print\ndef add(a, b): return 3",
        "def add(a, b): return {1, 2}",
        "add = 3",
        "",
    ],
)
async def test_code_that_pretends_does_not_pass(code: str) -> None:
    """Printing, exiting, equal-to-everything objects and patched libraries gain nothing."""
    episode = play()
    outcome = await episode.turn(("run_tests", {"code": code}))

    assert outcome.stop_reason is None
    assert not outcome.messages[0].content.startswith("Passed 3 of 3")
    assert (await episode.reward(StopReason.MAX_STEPS))[0] == 0.0


async def test_the_expected_values_never_enter_the_sandbox() -> None:
    """A submission can find the calls, but nothing to copy the answers from."""
    seen: list[str] = []

    def remember(invocation: ToolInvocation) -> ToolResult:
        seen.append(str(invocation.payload["code"]))
        return tool_result("")

    task: dict[str, Json] = {
        "prompt": "",
        "entry_point": "f",
        "tests": [{"args": [11], "expected": "secret-7431"}],
    }
    runner = ScriptedRunner(remember)
    episode = Play(CodeEnvironment(), task, runner)
    await episode.turn(("run_tests", {"code": "def f(x): pass"}))
    await episode.turn(("run_tests", {"code": "def f(x): pass"}))

    assert len(seen) == 2
    assert not any("secret-7431" in program for program in seen)
    assert seen[0] != seen[1], "every call draws a marker of its own"


async def test_a_submission_that_knows_the_marker_still_needs_the_values() -> None:
    """Forged report lines are compared like real ones, and the first report of a call counts."""
    forging = (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while 'marker' not in frame.f_locals: frame = frame.f_back\n"
        "m = frame.f_locals['marker']\n"
        'for i in range(3): sys.__stdout__.write(m + \'[%d, "value", "passed", ""]\\n\' % i)\n'
        "def add(a, b): return 0"
    )
    outcome = await play().turn(("run_tests", {"code": forging}))

    assert outcome.messages[0].content.startswith("Passed 0 of 3.")


async def test_a_submission_that_changes_its_arguments_harms_only_itself() -> None:
    """Each call gets fresh arguments."""
    task: dict[str, Json] = {
        "prompt": "",
        "entry_point": "f",
        "tests": [{"args": [[1, 2]], "expected": 2}, {"args": [[1, 2]], "expected": 2}],
    }
    outcome = await Play(CodeEnvironment(), task, PlainRunner()).turn(
        ("run_tests", {"code": "def f(xs):\n    return xs.pop()"})
    )

    assert outcome.stop_reason is StopReason.TOOL_STOPPED


async def test_a_flood_of_prints_does_not_drown_the_report() -> None:
    """What the submission prints is thrown away inside the sandbox."""
    code = "def add(a, b):\n    print('x' * 10_000_000)\n    return a + b"
    outcome = await play().turn(("run_tests", {"code": code}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED


async def test_a_run_that_ends_early_loses_only_the_tests_after_it() -> None:
    """Reports are flushed one by one, so what was finished at a timeout or a crash is known."""
    code = "import os\ndef add(a, b):\n    if a < 0: os._exit(1)\n    return a + b"
    result = await run_program(call_and_report("#m:", "add", code, [[1, 2], [0, 0], [-5, 4]]))

    report = read_report(result.output, "#m:", 3)
    verdict = judge(CodeTask.model_validate(TASK), report, "timed_out")
    assert verdict.text == "Passed 2 of 3.\nadd(-5, 4): no result (timed out)"
    verdict = judge(CodeTask.model_validate(TASK), report, result.outcome)
    assert verdict.text == "Passed 2 of 3.\nadd(-5, 4): no result (the code ended the process)"


async def test_a_huge_value_is_told_as_such() -> None:
    """It would crowd the other reports out of the sandbox's output."""
    outcome = await play().turn(("run_tests", {"code": "def add(a, b): return [0] * 9999"}))

    assert outcome.messages[0].content.splitlines()[1] == "add(1, 2): the value is too long"


@pytest.mark.parametrize(
    ("code", "observation"),
    [
        ("def add(a, b) return a", "Passed 0 of 3. SyntaxError: "),
        ("def sub(a, b): return a", "Passed 0 of 3. the code defines no function add"),
        ("import nothing_here", "Passed 0 of 3. ModuleNotFoundError: "),
        ("def add(a): return a", "Passed 0 of 3.\nadd(1, 2): TypeError: "),
    ],
)
async def test_broken_code_is_told_what_is_wrong(code: str, observation: str) -> None:
    """The first line says how many passed, the rest why."""
    outcome = await play().turn(("run_tests", {"code": code}))

    assert outcome.messages[0].content.startswith(observation)


async def test_dataclasses_work_in_a_submission() -> None:
    """A submission has a module of its own."""
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    x: int\n"
        "def add(a, b): return P(a).x + b"
    )
    outcome = await play().turn(("run_tests", {"code": code}))

    assert outcome.stop_reason is StopReason.TOOL_STOPPED


@pytest.mark.parametrize(("code", "reward"), [(GOOD, 1.0), ("def add(a, b): return 0", 0.0)])
async def test_a_fenced_final_answer_is_tested(code: str, reward: float) -> None:
    """A model that only writes code is judged by that code."""
    episode = play()
    await episode.turn(text=f"Here it is:\n```python\n{code}\n```")

    assert reward == (await episode.reward(StopReason.COMPLETED))[0]


async def test_a_final_text_without_code_is_worth_nothing() -> None:
    """Saying that it is done does not do it."""
    episode = play()
    await episode.turn(text="All tests pass.")

    value, info = await episode.reward(StopReason.COMPLETED)
    assert value == 0.0
    assert info["passed"] == 0


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (1, 1, True),
        (1.0, 1, True),
        (0.1 + 0.2, 0.3, True),
        (True, 1, False),
        (1, True, False),
        (False, 0, False),
        (False, False, True),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 2], False),
        ([True], [1], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (float("nan"), 0, False),
        (float("inf"), 1.0, False),
    ],
)
def test_values_are_compared_as_json(got: Json, expected: Json, same: bool) -> None:
    """Equal means equal in kind too, but for int and float."""
    assert same is equal(got, expected)


@pytest.mark.parametrize("line", ["#m:", "#m:[", "#m:[0]", '#m:{"a": 1}', '#m:["0", "value", 1, ""]', "[0]"])
def test_a_line_that_is_no_report_is_passed_over(line: str) -> None:
    """Half a line, or a foreign one, is no verdict."""
    assert read_report(line, "#m:", 1).calls == (None,)


def test_a_report_nested_beyond_reading_is_no_report() -> None:
    """What the sandbox says is the submission's work: it fails the test, never the trajectory."""
    deep = "[" * 200_000 + "]" * 200_000
    line = f'#m:[0, "value", {deep}, "x"]'

    assert read_report(line, "#m:", 1).calls == (None,)
