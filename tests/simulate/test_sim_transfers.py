"""Prefixes that travel between simulated workers, and those that do not arrive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sim_builders import make_hardware, make_trajectory, make_workload

from heddle.allocation.fixed import Fixed
from heddle.allocation.slots import SlotRule
from heddle.control.events import TransferFailed, TransferFinished
from heddle.control.log import decode_entry
from heddle.control.plane import ControlPlane
from heddle.control.ports import MoveMeans
from heddle.control.reshapes import ReshapeRules
from heddle.placement import make_placer
from heddle.predict import make_predictor
from heddle.reshaping.none import NoReshaping
from heddle.scheduling import make_scheduler
from heddle.simulate.options import Fault, SimulationOptions, WorkerCrash
from heddle.simulate.result import Outcome
from heddle.simulate.simulator import make_world
from heddle.types import TrajectoryId, WorkerId
from moving_planner import Nomad

T = TrajectoryId("t")
KEPT = 500 + 100 - 1
"""Tokens of its context that are computed when its first tool runs."""


def play(
    *, tool_s: float = 5.0, means: MoveMeans = MoveMeans.TRANSFER, faults: Sequence[Fault] = ()
) -> tuple[Outcome, list[TransferFinished | TransferFailed]]:
    """One trajectory of two steps, whose prefix takes about 0.6 s to move."""
    plane = ControlPlane(
        scheduler=make_scheduler("fcfs"),
        placer=make_placer("sticky_least_loaded"),
        allocator=Fixed("auto", SlotRule(4)),
        migration=Nomad(means),
        predictor=make_predictor("oracle"),
        reshaper=NoReshaping(),
        reshape_rules=ReshapeRules(SlotRule(4).of),
    )
    lines: list[bytes] = []
    options = SimulationOptions(check_every=1, log=lines.append, faults=tuple(faults))
    work = make_workload(make_trajectory("t", [100, 100], prompt=500, tool_s=tool_s))
    world = make_world(plane, work, make_hardware(gpus=2), options)
    world.run(())
    events = [decode_entry(line).event for line in lines]
    return world.rollouts.outcomes[T], [
        event for event in events if isinstance(event, TransferFinished | TransferFailed)
    ]


class TestTransfers:
    """Moves while the tool runs."""

    def test_what_arrives_is_not_computed_again(self) -> None:
        outcome, answers = play()

        assert answers == [TransferFinished(T, WorkerId("w0"), WorkerId("w1"), KEPT)]
        assert outcome.migrations == 1
        assert outcome.recomputed_tokens == 0
        assert outcome.computed_tokens == 500 + 11

    def test_a_move_without_a_transfer_computes_all_again(self) -> None:
        outcome, answers = play(means=MoveMeans.RECOMPUTE)

        assert answers == []
        assert outcome.migrations == 1
        assert outcome.recomputed_tokens == KEPT

    def test_what_is_late_is_given_up_and_costs_nothing(self) -> None:
        outcome, answers = play(tool_s=0.2)

        assert answers == [TransferFailed(T, WorkerId("w0"), WorkerId("w1"), "cancelled")]
        assert outcome.migrations == 0
        assert outcome.recomputed_tokens == 0
        assert outcome.parts.migration_s == 0.0

    @pytest.mark.parametrize("worker", ["w0", "w1"])
    def test_a_worker_that_dies_ends_its_transfer(self, worker: str) -> None:
        # Its first step takes about 1.6 s, so that the copy is under way.
        crash = WorkerCrash(WorkerId(worker), at_s=1.9, restart_s=60.0)
        outcome, answers = play(faults=[crash])

        assert answers == [TransferFailed(T, WorkerId("w0"), WorkerId("w1"), "cancelled")]
        assert outcome.generated_tokens == 200
        assert outcome.recomputed_tokens == (KEPT if worker == "w0" else 0)
