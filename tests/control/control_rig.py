"""A control plane to test with: events in, commands out, the invariants checked after every event."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.allocation import Fixed, SlotRule
from heddle.control.commands import Cancel, Command, Generate, Preempt, Transfer
from heddle.control.dispatch import DEFAULT_RULES, DispatchRules
from heddle.control.events import (
    BatchSubmitted,
    Event,
    GenerationInterrupted,
    PoolRequested,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryFinished,
    TrajectorySpec,
    TransferFailed,
    TransferFinished,
    WorkerLost,
    WorkerReady,
)
from heddle.control.plane import ControlPlane
from heddle.control.ports import LengthPredictor, MigrationPlanner, Placer, Reshaper, Scheduler
from heddle.control.reshapes import ReshapeRules
from heddle.control.state import TrajectoryState
from heddle.migration import make_migration_planner
from heddle.placement import make_placer
from heddle.planning.transfer_rate import TransferRate
from heddle.predict import make_predictor
from heddle.reshaping.none import NoReshaping
from heddle.scheduling import make_scheduler
from heddle.types import BatchId, GroupId, InterruptReason, StopReason, TrajectoryId, WorkerId

START_S = 30.0
"""That a start of a worker is expected to take."""


def make_spec(
    name: str,
    *,
    generated_tokens: int = 0,
    steps_done: int = 0,
    prompt_tokens: int = 100,
    known: int | None = None,
    preemptible: bool = True,
    step_limit: int | None = None,
) -> TrajectorySpec:
    """A trajectory; ``known`` is its total for the oracle."""
    return TrajectorySpec(
        trajectory_id=TrajectoryId(name),
        group_id=GroupId(f"{name}-group"),
        prompt_tokens=prompt_tokens,
        max_tokens=1000,
        context_tokens=prompt_tokens + generated_tokens,
        generated_tokens=generated_tokens,
        steps_done=steps_done,
        max_tokens_per_step=step_limit,
        preemptible=preemptible,
        known_total_tokens=known,
    )


def make_batch(batch_id: str, size: int) -> BatchSubmitted:
    """A batch of ``size`` trajectories, named ``{batch_id}0`` and so on."""
    return BatchSubmitted(BatchId(batch_id), tuple(make_spec(f"{batch_id}{i}") for i in range(size)))


def generated(commands: Sequence[Command]) -> list[tuple[str, str]]:
    """Trajectory and worker of every ``Generate``."""
    return [(c.trajectory_id, c.worker_id) for c in commands if isinstance(c, Generate)]


def preempted(commands: Sequence[Command]) -> list[str]:
    """Trajectory of every ``Preempt``."""
    return [c.trajectory_id for c in commands if isinstance(c, Preempt)]


def cancelled(commands: Sequence[Command]) -> list[str]:
    """Trajectory of every ``Cancel``."""
    return [c.trajectory_id for c in commands if isinstance(c, Cancel)]


class Rig:
    """Sends events one second apart, and fills in what a well-behaved data plane would say."""

    def __init__(
        self,
        *,
        slots: int = 2,
        pool: str = "auto",
        scheduler: Scheduler | None = None,
        placer: Placer | None = None,
        migration: MigrationPlanner | None = None,
        predictor: LengthPredictor | None = None,
        reshaper: Reshaper | None = None,
        rules: DispatchRules = DEFAULT_RULES,
        transfer_rate: TransferRate | None = None,
    ) -> None:
        self.plane = ControlPlane(
            scheduler=scheduler or make_scheduler("fcfs"),
            placer=placer or make_placer("sticky_least_loaded"),
            allocator=Fixed(pool, SlotRule(slots)),
            migration=migration or make_migration_planner("none"),
            predictor=predictor or make_predictor("mean_by_step"),
            reshaper=reshaper or NoReshaping(),
            reshape_rules=ReshapeRules(SlotRule(slots).of, start_s=START_S),
            rules=rules,
            transfer_rate=transfer_rate,
        )
        self.now = 0.0
        self.transfers: dict[TrajectoryId, Transfer] = {}
        """Ordered and not answered."""

    def send(self, event: Event) -> list[Command]:
        self.now += 1.0
        commands = self.plane.handle(event, self.now)
        self.plane.state.check_invariants()
        self.transfers |= {c.trajectory_id: c for c in commands if isinstance(c, Transfer)}
        return commands

    def transferred(self, name: str) -> list[Command]:
        order = self.transfers.pop(TrajectoryId(name))
        return self.send(
            TransferFinished(order.trajectory_id, order.source, order.target, order.context_tokens)
        )

    def transfer_failed(self, name: str) -> list[Command]:
        order = self.transfers.pop(TrajectoryId(name))
        return self.send(TransferFailed(order.trajectory_id, order.source, order.target, "it broke"))

    def pool(self, workers: int, *, kv_capacity_tokens: int | None = None) -> None:
        """Start this many workers of one unit each, and bring them up."""
        self.send(PoolRequested(workers))
        for index in range(workers):
            self.ready(f"w{index}", kv_capacity_tokens=kv_capacity_tokens)

    def ready(
        self, worker: str, *, slots: int | None = None, kv_capacity_tokens: int | None = None
    ) -> list[Command]:
        known = self.plane.state.workers[WorkerId(worker)]
        return self.send(WorkerReady(WorkerId(worker), slots or known.slots, kv_capacity_tokens))

    def lost(self, worker: str, *, will_restart: bool = True) -> list[Command]:
        return self.send(WorkerLost(WorkerId(worker), "killed", will_restart))

    def submit(self, batch_id: str, size: int) -> list[Command]:
        return self.send(make_batch(batch_id, size))

    def trajectory(self, name: str) -> TrajectoryState:
        return self.plane.state.trajectories[TrajectoryId(name)]

    def step(self, name: str, *, output: int = 10, forced: int = 0) -> list[Command]:
        t = self.trajectory(name)
        assert t.worker_id is not None
        return self.send(
            StepGenerated(t.trajectory_id, t.worker_id, t.steps_done, t.context_tokens, 0, output, forced)
        )

    def interrupt(
        self, name: str, *, output: int = 3, reason: InterruptReason = InterruptReason.WORKER_LOST
    ) -> list[Command]:
        t = self.trajectory(name)
        assert t.worker_id is not None
        return self.send(GenerationInterrupted(t.trajectory_id, t.worker_id, t.steps_done, output, reason))

    def tools_started(self, name: str) -> list[Command]:
        t = self.trajectory(name)
        return self.send(ToolsStarted(t.trajectory_id, t.steps_done - 1, ("python",)))

    def tools_finished(self, name: str, *, appended: int = 5) -> list[Command]:
        t = self.trajectory(name)
        return self.send(ToolsFinished(t.trajectory_id, t.steps_done - 1, appended))

    def finish(self, name: str, reason: StopReason = StopReason.COMPLETED) -> list[Command]:
        return self.send(TrajectoryFinished(TrajectoryId(name), reason))

    def homes(self) -> dict[str, int]:
        """Residents by worker."""
        return {worker.worker_id: worker.resident for worker in self.plane.state.workers.values()}
