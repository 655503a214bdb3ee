"""Entries come back as they were written, and those with numbers one by one, as they once were, are read."""

from __future__ import annotations

import math
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from heddle.agent import journal
from heddle.agent.clock import TimingParts
from heddle.agent.journal import GeneratedEntry, JournalEntry, TrajectoryJournal
from heddle.agent.packed import pack, version_runs
from heddle.records import StepRecord, Trajectory
from heddle.types import FinishReason, Message, ToolCall, TrajectoryId

CALL = ToolCall("call_0_0", "say", {"text": "line\nline", "times": 2, "share": 1.0})


class Written:
    """A journal that keeps what it is given."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    async def append(self, entry: JournalEntry) -> None:
        self.entries.append(entry)

    async def commit(self, trajectory: Trajectory, violations: object = ()) -> None:
        raise AssertionError("nothing ends here")


def make_entry(ids: list[int], logprobs: list[float], versions: list[int]) -> GeneratedEntry:
    step = StepRecord(
        0, "w0", 1, 4, 0, len(ids), 0, FinishReason.STOP, 0, constrained=False, segments=1, preemptions=0,
        tool_calls=(), queue_s=0.0, prefill_s=0.0, decode_s=0.0,
    )  # fmt: skip
    return GeneratedEntry(
        step=step, forced_ids=[], token_ids=array("i", ids), logprobs=array("d", logprobs),
        weight_versions=version_runs(versions), prediction=None, model="m", prompt_checksum=1,
        parts=TimingParts(), wall=1.0, message=Message("assistant", "text\n", tool_calls=(CALL,)),
    )  # fmt: skip


def json_of(entry: GeneratedEntry) -> dict[str, Any]:
    """What stands in front of the arrays."""
    fields: dict[str, Any] = orjson.loads(pack(entry).partition(b"\n")[0])
    return fields


TOKENS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.floats(allow_nan=False, allow_infinity=True), st.integers(0, 2)),
    max_size=50,
)


@given(TOKENS)
async def test_an_entry_comes_back_as_it_was_written(tokens: list[tuple[int, float, int]]) -> None:
    entry = make_entry([i for i, _, _ in tokens], [p for _, p, _ in tokens], [v for _, _, v in tokens])
    written = Written()
    await TrajectoryJournal(written, TrajectoryId("t"), 0).append(journal.GENERATION, entry)

    assert journal.decode_generated(written.entries[0].payload) == entry


async def test_what_is_no_number_is_not_lost_either() -> None:
    """A gate is to see it, also after a crash."""
    written = Written()
    await TrajectoryJournal(written, TrajectoryId("t"), 0).append(
        journal.GENERATION, make_entry([1], [math.nan], [0])
    )

    [logprob] = journal.decode_generated(written.entries[0].payload).logprobs
    assert math.isnan(logprob)


def test_numbers_one_by_one_are_read() -> None:
    """As entries had them before."""
    entry = make_entry([5, 6, 7], [-0.5, -1.0, 0.0], [3, 3, 4])
    fields = json_of(entry)
    fields |= {"token_ids": [5, 6, 7], "logprobs": [-0.5, -1.0, 0], "weight_versions": [3, 3, 4]}

    assert journal.decode_generated(orjson.dumps(fields)) == entry


@pytest.mark.parametrize(
    "wrong",
    ["?", "AAA=", 5, None, ["a"], [2**40], [0.5], {"at": 0}, {"at": 0, "items": 4}, {"at": 12, "items": 1},
     {"at": -4, "items": 1}, {"at": 4, "items": -1}, {"at": 0, "items": "1"}],
)  # fmt: skip
def test_what_is_no_array_is_refused(wrong: object) -> None:
    """Twelve bytes of words follow."""
    entry = make_entry([5], [-0.5], [3])
    words = pack(entry).partition(b"\n")[2]
    fields = json_of(entry) | {"token_ids": wrong}

    with pytest.raises(ValidationError, match="token_ids"):
        journal.decode_generated(orjson.dumps(fields) + b"\n" + words)
