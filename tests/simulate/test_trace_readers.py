"""Traces and Mooncake traces: what is played, what is said of it, and what is refused by line and reason."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from heddle.errors import InvalidRequest
from heddle.simulate.readers import TraceFormat, format_of, read_workload
from heddle.simulate.shipped import SHIPPED_TRACES, shipped_trace
from heddle.simulate.workload import Workload, WorkStep


def step(prompt: object = 10, output: int = 5, tool: str | None = "search", **more: Any) -> dict[str, Any]:
    """A step whose tool took 2 s."""
    seconds = 2.0 if tool else None
    return {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "tool_name": tool,
        "tool_seconds": seconds,
    } | more


def line(identity: str = "a/0", *steps: dict[str, Any]) -> dict[str, Any]:
    """A line of prompt ``a``; without steps, with two."""
    return {
        "trajectory_id": identity,
        "prompt_id": identity.partition("/")[0],
        "steps": list(steps) or [step(), step(3, 7, None)],
    }


def content(*rows: Any) -> bytes:
    """Rows as lines; bytes as they are."""
    return b"\n".join(row if isinstance(row, bytes) else orjson.dumps(row) for row in rows) + b"\n"


def read(*rows: Any) -> Workload:
    """The workload of a file ``f``."""
    return read_workload(content(*rows), name="f")


def refusal(*rows: Any) -> InvalidRequest:
    """The error that a file ``f`` gives."""
    with pytest.raises(InvalidRequest) as caught:
        read(*rows)
    return caught.value


def test_a_trace_is_played_as_it_was_recorded() -> None:
    """Order, groups, tokens, tools."""
    workload = read(line("a/0"), b"", line("a/1", step(10, 1, "read+search"), step(0, 1, None)))
    first, second = workload.trajectories
    assert (WorkStep(10, 5, ("search",), 2.0), WorkStep(3, 7)) == first.steps
    assert (WorkStep(10, 1, ("read", "search"), 2.0), WorkStep(0, 1)) == second.steps
    assert ("a/0", "a/1") == (first.trajectory_id, second.trajectory_id)
    assert first.group_id == second.group_id == "a"
    assert () == workload.notes
    assert 14 == workload.total_tokens


def test_every_turn_of_a_session_is_a_trajectory() -> None:
    """Its prompt is the context at its start, recorded or counted."""
    counted = read(line("a", step(10, 5, None, turn=0), step(3, 7, turn=1), step(1, 1, None, turn=1)))
    assert ["a/0", "a/1"] == [t.trajectory_id for t in counted.trajectories]
    assert ["a/0", "a/1"] == [t.group_id for t in counted.trajectories]
    assert [10, 18] == [t.steps[0].prompt_tokens for t in counted.trajectories]
    recorded = read(line("a", step(10, 5, None, turn=0), step(3, 7, None, turn=2, context_tokens=900)))
    assert [10, 900] == [t.steps[0].prompt_tokens for t in recorded.trajectories]
    assert "2 turns of 1 session" in recorded.notes[0]


def test_what_a_shrunk_context_lost_is_filled_before_it_grows() -> None:
    """Played contexts return to the recorded length, and the note says by how much they differ."""
    shrinking = line("a", step(100, 10), step(0, 10, context_shrunk_by=60), step(40, 10), step(50, 10, None))
    workload = read(shrinking)
    assert [100, 0, 0, 30] == [s.prompt_tokens for s in workload.trajectories[0].steps]
    (note,) = workload.notes
    assert "1 call of 4 shrank" in note
    assert "up to 60 tokens too long, 60 appended tokens left out" in note


def test_unknown_is_not_the_same_as_none() -> None:
    """A tool whose time is missing is unknown between steps and nobody's concern after the last."""
    workload = read(line("a", step(1, 1, "t", tool_seconds=None), step(1, 0, "t", tool_seconds=None)))
    middle, last = workload.trajectories[0].steps
    assert (("t",), None) == (middle.tool_names, middle.tool_seconds)
    assert ((), 0.0, 1) == (last.tool_names, last.tool_seconds, last.output_tokens)
    assert workload.has_unknown_tool_times
    assert ["1 call sampled nothing, played as one token", "1 tool call after a last generation"] == [
        note.partition(", never")[0] for note in workload.notes
    ]


@pytest.mark.parametrize(
    ("rows", "path", "message"),
    [
        ([line(), b'{"trajectory_id": "b'], "f:2", "Invalid JSON"),
        ([line(), [1, 2]], "f:2", "an object"),
        ([line(), {"steps": []}], "f:2: trajectory_id", "required"),
        ([line("a", step(output=-1))], "f:1: steps.0.output_tokens", "greater than or equal to 0"),
        ([line("a", step(prompt="7"))], "f:1: steps.0.prompt_tokens", "integer"),
        ([line("a", step(), step(tool_seconds=-0.5))], "f:1: steps.1.tool_seconds", "greater than"),
        ([line("a", step(tool_seconds=1e9))], "f:1: steps.0.tool_seconds", "less than"),
        ([b'{"trajectory_id":"a","prompt_id":"a","steps":[]}'], "f:1: steps", "at least one step"),
        ([line("a/0"), line("b/0"), b"", line("a/0")], "f:4: trajectory_id", "that of f:1 too"),
        ([line("a", step(turn=1), step(turn=0))], "f:1: steps.1.turn", "must not fall"),
        ([line("a", step(turn=1), step())], "f:1: steps.1.turn", "must not fall"),
    ],
)
def test_damaged_traces_are_refused_by_line_and_field(rows: list[Any], path: str, message: str) -> None:
    """Nothing of such a file is played."""
    error = refusal(*rows)
    assert path == error.path
    assert message in error.message


@pytest.mark.parametrize(
    ("damaged", "path", "message"),
    [
        (b"", "f", "is empty"),
        (b"\n\n", "f", "is empty"),
        (b"a,b\n1,2\n", "f:1", "not a line of JSON"),
        (b"\x1f\x8b\x08\x00", "f:1", "not a line of JSON"),
        (b'\n{"timestamp": 1}\n', "f:2", "of no known format"),
        (b"[1]\n", "f:1", "of no known format"),
    ],
)
def test_foreign_files_are_refused(damaged: bytes, path: str, message: str) -> None:
    """Told by their first line."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_workload(damaged, name="f")
    assert path == caught.value.path


def request(prompt: int = 100, output: int = 5, **more: Any) -> dict[str, Any]:
    """A line of a Mooncake trace."""
    return {"input_length": prompt, "output_length": output} | more


def test_plain_mooncake_requests_are_trajectories_of_one_step() -> None:
    """Arrivals count from the first; equal prompts make a group."""
    workload = read(
        request(timestamp=3000, hash_ids=[0, 1]),
        request(timestamp=2500, hash_ids=[0, 2]),
        request(timestamp=4000.5, output=9, hash_ids=[0, 1]),
    )
    assert [0.5, 0.0, 1.5005] == [t.arrival_s for t in workload.trajectories]
    first, second, third = (t.group_id for t in workload.trajectories)
    assert first == third != second
    assert [(WorkStep(100, 9),)] == [t.steps for t in workload.trajectories[2:]]
    assert (
        "prompts that share only a part of their blocks are played as if they shared none",
    ) == workload.notes


def test_sessions_are_trajectories_whose_delays_are_their_tools() -> None:
    """What is appended is what the whole prompt has more than before; sessions may be interleaved."""
    workload = read(
        request(100, 10, session_id="s", timestamp=0, request_id="r0", hash_ids=[1]),
        request(40, 1, session_id="t", timestamp=10),
        request(130, 20, session_id="s", delay=1500, wait_for=["r0"], hash_ids=[1, 2]),
        request(140, 5, session_id="s", tool_wait_ms=250, hash_ids=[1, 3]),
        request(200, 5, session_id="s", hash_ids=[1, 3, 4]),
    )
    steps = workload.trajectories[0].steps
    assert [100, 20, 0, 45] == [s.prompt_tokens for s in steps]
    assert [1.5, 0.25, None, 0.0] == [s.tool_seconds for s in steps]
    assert 0.01 == workload.trajectories[1].arrival_s
    assert any("1 request of 5 shrank" in note for note in workload.notes)
    assert any("1 request of sessions without a delay" in note for note in workload.notes)


def test_other_spellings_are_understood() -> None:
    """Those that other tools write."""
    workload = read(
        {"input_tokens": 7, "output_tokens": 2, "created_time": 5, "session_id": 1},
        {"input_tokens": 9, "output_tokens": 2, "delay_ms": 1000, "session_id": 1},
    )
    assert (WorkStep(7, 2, ("unrecorded",), 1.0), WorkStep(0, 2)) == workload.trajectories[0].steps


@pytest.mark.parametrize(
    ("rows", "path", "message"),
    [
        ([request(), request(prompt=-1)], "f:2: input_length", "greater than"),
        ([request(prompt=0)], "f:1: input_length", "at least one token"),
        ([request(timestamp="noon")], "f:1: timestamp", "number"),
        ([request(timestamp=1), request()], "f", "has no timestamp"),
        ([request(session_id="s", branches=["x"])], "f:1: branches", "cannot be played"),
        ([request(session_id="s", wait_for="x")], "f:1: wait_for", "waits for 'x'"),
        ([request(session_id="s"), request(20, session_id="s")], "f:2: input_length", "whole prompts"),
        (
            [request(session_id="s", hash_ids=[1]), request(200, session_id="s", hash_ids=[7])],
            "f:2: hash_ids",
            "shares no block",
        ),
    ],
)
def test_what_mooncake_traces_cannot_say_is_refused(rows: list[Any], path: str, message: str) -> None:
    """Dependencies and prompts that are no whole prompts."""
    error = refusal(*rows)
    assert path == error.path
    assert message in error.message


@pytest.mark.parametrize("name", SHIPPED_TRACES)
def test_the_shipped_traces_are_read_without_a_remark(name: str) -> None:
    """And fit the smallest pool that a profile is shipped for."""
    raw = shipped_trace(name)
    assert format_of(raw, name=name) is TraceFormat.TRACE
    workload = read_workload(raw, name=name)
    assert () == workload.notes
    assert 250 < len(workload.trajectories) < 260
    contexts = [sum(s.prompt_tokens + s.output_tokens for s in t.steps) for t in workload.trajectories]
    assert max(contexts) <= 16_384
    assert (name != "coding_agent") is workload.has_unknown_tool_times
