"""The stopwatch and the token arrays of one trajectory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.agent.clock import TrajectoryClock
from heddle.agent.ports import ToolResult
from heddle.agent.tokens import TokenBuffer


class ManualTime:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def make_result(queue_s: float, cold_s: float, run_s: float) -> ToolResult:
    return ToolResult("", ok=True, outcome="ok", queue_s=queue_s, cold_start_s=cold_s, run_s=run_s)


def test_the_parts_and_the_coordinators_share_add_up_to_the_wall() -> None:
    """Whatever no part claims is the coordinator's own."""
    time = ManualTime()
    clock = TrajectoryClock(time)
    clock.parts.queue += 1.0
    clock.add_generation(prefill_s=2.0, decode_s=3.0, decode_base_s=2.5)
    time.seconds += 7.0

    timing = clock.timing()

    assert timing.wall == 7.0
    assert timing.decode_base == 2.5
    assert timing.interference == 0.5
    assert timing.coordinator == 1.0
    assert timing.parts == pytest.approx(timing.wall)


def test_decoding_faster_than_the_base_is_no_negative_interference() -> None:
    """A base estimate that is too slow is capped by what was measured."""
    clock = TrajectoryClock(ManualTime())

    clock.add_generation(prefill_s=0.0, decode_s=1.0, decode_base_s=4.0)

    assert (clock.parts.decode_base, clock.parts.interference) == (1.0, 0.0)


def test_concurrent_tools_are_scaled_to_the_time_they_shared() -> None:
    """Two calls of 3 s side by side took 3 s of the trajectory, not 6."""
    clock = TrajectoryClock(ManualTime())

    clock.add_tools([make_result(0.0, 1.0, 2.0), make_result(0.0, 1.0, 2.0)], elapsed_s=3.0)

    assert clock.parts.tool_cold == pytest.approx(1.0)
    assert clock.parts.tool_run == pytest.approx(2.0)


def test_a_resumed_trajectory_keeps_its_earlier_wall() -> None:
    """Time before a crash counts, the downtime does not."""
    time = ManualTime()
    clock = TrajectoryClock(time, earlier_wall=5.0)
    time.seconds += 2.0

    assert clock.wall == 7.0


def test_sampled_and_given_tokens_differ_only_in_mask_and_logprob() -> None:
    """The context is the concatenation; the mask is 1 exactly on what was sampled."""
    buffer = TokenBuffer([1, 2])
    buffer.append_given([3], weight_version=7)
    buffer.append_sampled([4, 5], [-0.5, -1.5], [(7, 1), (8, 1)])

    assert buffer.context([6]) == [1, 2, 3, 4, 5, 6]
    assert buffer.response_mask == [0, 1, 1]
    assert buffer.response_logprobs == [0.0, -0.5, -1.5]
    assert buffer.weight_versions == [7, 7, 8]
    assert (len(buffer), buffer.sampled_tokens) == (5, 2)


def test_unequal_lengths_are_refused_before_anything_changes() -> None:
    """A token without a logprob must never get in."""
    buffer = TokenBuffer([1])

    with pytest.raises(ValueError, match="2 ids, 1 logprobs"):
        buffer.append_sampled([2, 3], [-0.1], [(0, 2)])

    assert buffer.response_ids == []


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1000), max_size=5))))
def test_the_arrays_always_have_equal_length(pieces: list[tuple[bool, list[int]]]) -> None:
    """Whatever is appended in whatever order."""
    buffer = TokenBuffer([9])
    for sampled, ids in pieces:
        if sampled:
            buffer.append_sampled(ids, [-1.0] * len(ids), [(0, len(ids))])
        else:
            buffer.append_given(ids, 0)

    lengths = {len(buffer.response_ids), len(buffer.response_mask), len(buffer.response_logprobs)}
    assert lengths == {len(buffer.weight_versions)}
    assert buffer.context() == [9, *(i for _, ids in pieces for i in ids)]
    assert sum(buffer.response_mask) == buffer.sampled_tokens
