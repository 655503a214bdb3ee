"""Event logs as workloads: what a run recorded is what it was given."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import (
    BatchSubmitted,
    Event,
    PoolRequested,
    StepGenerated,
    TrajectorySpec,
    WorkerReady,
)
from heddle.control.log import encode_entry, encode_header
from heddle.errors import InvalidRequest
from heddle.simulate.readers import read_workload
from heddle.simulate.readers.recorded import parse_recorded
from heddle.simulate.shipped import shipped_trace
from heddle.types import BatchId, GroupId, TrajectoryId, WorkerId

sys.path.append(str(Path(__file__).parents[1] / "control"))
from virtual_world import Recorded, VirtualWorld

SETTINGS = PlaneSettings(scheduler="progressive", predictor="oracle", slots=2, pool="1+1")


def some_trajectories(count: int, seed: int) -> list[Recorded]:
    """Of one to five steps, with tool times."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        tokens = tuple(rng.randint(1, 400) for _ in range(rng.randint(1, 5)))
        made.append(Recorded(tokens, tuple(rng.uniform(0.1, 4.0) for _ in tokens[1:])))
    return made


def log_of(world: VirtualWorld) -> bytes:
    """The log that the world's control plane would have written."""
    plane = build_plane(world.settings)
    lines = [encode_header(world.settings)]
    for seq, (now, event) in enumerate(world.events):
        lines.append(encode_entry(seq, now, event, plane.handle(event, now), plane.last_ignored))
    return b"\n".join(lines) + b"\n"


def test_a_recorded_run_gives_back_its_workload() -> None:
    """Tokens per step with interrupted segments put together, tool times, workers and makespan."""
    recorded = some_trajectories(12, seed=5)
    world = VirtualWorld(SETTINGS, recorded)
    world.run()
    assert sum(sum(life.preemptions.values()) for life in world.lives.values()) > 0
    run = parse_recorded(log_of(world), name="log")
    assert len(recorded) == len(run.workload.trajectories)
    for was, read in zip(recorded, run.workload.trajectories, strict=True):
        assert was.output_tokens == tuple(step.output_tokens for step in read.steps)
        assert pytest.approx([*was.tool_s, 0.0]) == [step.tool_seconds for step in read.steps]
        assert [20] + [3] * (len(read.steps) - 1) == [step.prompt_tokens for step in read.steps]
    assert SETTINGS == run.settings
    assert [("w0", 1, 2), ("w1", 1, 2)] == [
        (w.spec.worker_id, w.spec.tp_degree, w.spec.slots) for w in run.workers
    ]
    assert pytest.approx(world.makespan_s) == run.makespan_s
    assert sum(was.total for was in recorded) == sum(g.output_tokens for g in run.generations)


def test_a_log_that_breaks_off_is_played_as_far_as_it_came() -> None:
    """A torn last line and open trajectories are told, not refused."""
    world = VirtualWorld(SETTINGS, some_trajectories(6, seed=1))
    world.run()
    lines = log_of(world).split(b"\n")
    cut = b"\n".join(lines[: len(lines) // 2]) + b"\n" + lines[len(lines) // 2][:20]
    workload = read_workload(cut, name="log")
    assert any("open at the end of the log" in note for note in workload.notes)
    assert any("torn (20 bytes)" in note for note in workload.notes)


def some_log() -> list[bytes]:
    """Header, a worker, a batch of one, and its first step."""
    spec = TrajectorySpec(TrajectoryId("t"), GroupId("g"), 7, 100, 7)
    first: list[Event] = [
        PoolRequested(1),
        WorkerReady(WorkerId("w0"), 2, None),
        BatchSubmitted(BatchId("b"), (spec,)),
        StepGenerated(TrajectoryId("t"), WorkerId("w0"), 0, 7, 0, 5),
    ]
    lines = [encode_header(SETTINGS)]
    return lines + [encode_entry(seq, float(seq), event, ()) for seq, event in enumerate(first)]


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (lambda lines: [*lines[:3], b"{}", *lines[3:]], "log:4", "bad entry"),
        (lambda lines: [*lines[:2], *lines[3:]], "log:3: seq", "event 1 is missing"),
        (lambda lines: [b'{"heddle_event_log":99}', *lines[1:]], "log:1", "version 99"),
        (lambda lines: [lines[0]], "log", "no trajectory that generated"),
        (
            lambda lines: [*lines[:4], lines[4].replace(b'"now":3', b'"now":1')],
            "log:5: now",
            "time goes back",
        ),
        (
            lambda lines: [*lines[:4], lines[4].replace(b'"output_tokens":5', b'"output_tokens":-5')],
            "log:5: event",
            "below 0",
        ),
        (
            lambda lines: [*lines[:3], lines[4].replace(b'"seq":3', b'"seq":2')],
            "log:4",
            "no batch before it has a trajectory 't'",
        ),
    ],
)
def test_damaged_logs_are_refused(
    change: Callable[[list[bytes]], list[bytes]], path: str, message: str
) -> None:
    """By line and reason."""
    with pytest.raises(InvalidRequest) as caught:
        read_workload(b"\n".join([*change(some_log()), b""]), name="log")
    assert path == caught.value.path
    assert message in caught.value.message


@settings(max_examples=200)
@given(data=st.data())
def test_whatever_is_damaged_is_read_or_refused(data: st.DataObject) -> None:
    """Bytes changed, dropped and doubled anywhere in any format: never another error."""
    valid = data.draw(st.sampled_from(VALID))
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(content)))
        end = min(len(content), begin + data.draw(st.integers(0, 12)))
        content[begin:end] = data.draw(
            st.sampled_from((b"", b"-", b"9" * 25, b"null", b"\n", b"{}", b"\xff"))
        )
    with suppress(InvalidRequest):
        read_workload(bytes(content), name="f")


VALID = (
    b"\n".join([*some_log(), b""]),
    shipped_trace("math_agent")[:4000].rpartition(b"\n")[0],
    b'{"input_length":9,"output_length":2,"timestamp":5,"session_id":"s","hash_ids":[1]}\n'
    b'{"input_length":12,"output_length":2,"delay":100,"session_id":"s","hash_ids":[1,2]}\n',
)
