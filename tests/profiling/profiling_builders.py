"""Builders for the tests of profiling."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.agent.ports import GenerationRequest
from heddle.engines.fake import FakeFaults, FakeLauncher, FakeModel
from heddle.profiling.measured import MeasuredDegree, MeasuredPoint, Subject
from heddle.profiling.sweep import SweepPlan

SUBJECT = Subject(gpu="cpu", model="tiny", context_tokens=64)
END_OF_TURN = 2


def make_plan(
    *,
    degrees: tuple[int, ...] = (1,),
    batches: tuple[int, ...] = (1, 2),
    slots: int = 2,
    context_tokens: int = 64,
    rounds: int = 1,
    room_tokens: int = 4096,
) -> SweepPlan:
    """A sweep of one degree in one round."""
    return SweepPlan(degrees, batches, slots, context_tokens, rounds, room_tokens)


def make_launcher(*, ends_after: int = 10_000, faults: Sequence[FakeFaults] = ()) -> FakeLauncher:
    """Fakes whose tokens take a millisecond, and whose generations end after so many."""

    def script(request: GenerationRequest) -> list[int]:
        return [7] * min(ends_after, request.max_new_tokens) + [END_OF_TURN]

    model = FakeModel(script=script, token_delay_s=0.001, end_of_turn_id=END_OF_TURN)
    return FakeLauncher(model=model, faults=faults)


def make_degree(tp_degree: int = 1, *samples_ms: tuple[float, ...], kv: int | None = 4096) -> MeasuredDegree:
    """Batches 1, 2, 3 ... with the given samples."""
    points = tuple(
        MeasuredPoint(batch, tuple(ms / 1000 for ms in samples))
        for batch, samples in enumerate(samples_ms, 1)
    )
    return MeasuredDegree(tp_degree, 4, points, prefill_tokens_per_s=100.0, kv_capacity_tokens=kv)
