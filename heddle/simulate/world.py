"""The world around a control plane in virtual time: posts its events, carries out its commands.

Stands where the coordinator stands live. Everything that happens is on one agenda; two runs with the same
arguments do the same in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import assert_never

from heddle.control.commands import (
    Cancel,
    CancelTransfer,
    Command,
    Generate,
    Preempt,
    StartWorker,
    StopWorker,
    Transfer,
)
from heddle.control.events import (
    BatchCancelled,
    BatchSubmitted,
    Event,
    LearningTurn,
    PoolRequested,
    PredictorRestored,
    TrajectorySpec,
)
from heddle.control.log import encode_entry
from heddle.control.plane import ControlPlane
from heddle.errors import ConfigError
from heddle.simulate.agenda import Agenda
from heddle.simulate.hardware import Hardware
from heddle.simulate.journey import Journey
from heddle.simulate.options import Cancellation, Fault, SimulationOptions, WorkerCrash, WorkerSlowdown
from heddle.simulate.rollouts import Rollouts
from heddle.simulate.workers import Workers
from heddle.types import BatchId, StopReason, TrajectoryId

UNLIMITED_TOKENS = 1 << 30
"""Limit of a trajectory: its recording ends it, nothing else."""


class World:
    """Single use: ``run`` once."""

    def __init__(
        self,
        plane: ControlPlane,
        hardware: Hardware,
        options: SimulationOptions,
        journeys: Mapping[TrajectoryId, Journey],
    ) -> None:
        self._plane = plane
        self._hardware = hardware
        self._options = options
        self._journeys = journeys
        self._agenda = Agenda()
        self._sequence = 0
        self._batches: set[BatchId] = set()
        """Submitted so far."""
        self.workers = Workers(self._agenda, hardware, self.post)
        self.rollouts = Rollouts(self._agenda, options, self.workers, journeys, self.post)

    def run(self, expected_tokens: Sequence[int], until_s: float = math.inf) -> bool:
        """Play everything to its end; False where it was not over at ``until_s`` and was given up.

        ``expected_tokens`` are the lengths that the pool is planned for. Raises ``ConfigError`` where the
        pool cannot be made, what was learned cannot be read, or trajectories would wait for ever.
        """
        if self._options.learned is not None:
            self.post(PredictorRestored(self._options.learned))
        self.post(PoolRequested(self._hardware.gpus, tuple(expected_tokens)))
        self.workers.settle_first()
        for fault in self._options.faults:
            self._agenda.at(fault.at_s, partial(self._inject, fault))
        for batch_id, journeys in _batches(self._journeys.values()).items():
            self._agenda.at(journeys[0].work.arrival_s, partial(self._submit, batch_id, journeys))
        while self.rollouts.open:
            if not self._agenda.advance():
                raise ConfigError(f"{self.rollouts.open} trajectories wait for ever: nobody will serve them")
            if self._agenda.now > until_s:
                return False
        self._plane.state.check_invariants()
        return True

    @property
    def events(self) -> int:
        """Posted so far."""
        return self._sequence

    def post(self, event: Event) -> None:
        """Let the control plane hear an event, and carry out what it orders.

        Nothing that is carried out posts an event before this returns: two decisions never interleave.
        Learning takes no virtual time: a live coordinator does it between two events.
        """
        self._handle(event)
        while self._plane.predictor.waiting:
            self._handle(LearningTurn())

    def _handle(self, event: Event) -> None:
        now = self._agenda.now
        commands = self._plane.handle(event, now)
        if self._options.log is not None:
            line = encode_entry(self._sequence, now, event, commands, self._plane.last_ignored)
            self._options.log(line)
        self._sequence += 1
        if self._options.check_every and not self._sequence % self._options.check_every:
            self._plane.state.check_invariants()
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Generate():
                self.rollouts.grant(command)
            case Preempt():
                self.rollouts.preempt(command)
            case Cancel():
                self.rollouts.cancel(command)
            case Transfer():
                self.workers.transfer(command, self._journeys[command.trajectory_id])
            case CancelTransfer():
                self.workers.cancel_transfer(command)
            case StartWorker():
                self.workers.start(command.spec, self.rollouts.ended)
            case StopWorker():
                self.workers.stop_worker(command.worker_id)
            case _:
                assert_never(command)

    def _submit(self, batch_id: BatchId, journeys: Sequence[Journey]) -> None:
        self._batches.add(batch_id)
        self.rollouts.arrive(journeys)
        self.post(BatchSubmitted(batch_id, tuple(_spec(journey) for journey in journeys)))

    def _inject(self, fault: Fault) -> None:
        match fault:
            case WorkerCrash():
                self.workers.crash(fault, self.rollouts.lost)
            case WorkerSlowdown():
                self.workers.slow_down(fault.worker_id, fault.factor)
                if fault.until_s < float("inf"):
                    self._agenda.at(fault.until_s, partial(self.workers.slow_down, fault.worker_id, 1.0))
            case Cancellation():
                for batch_id in sorted(self._batches):
                    self.post(BatchCancelled(batch_id, StopReason.CANCELLED))
            case _:
                assert_never(fault)


def _batches(journeys: Iterable[Journey]) -> dict[BatchId, list[Journey]]:
    """Those that arrive together, in the order of the workload."""
    batches: dict[BatchId, list[Journey]] = {}
    for journey in journeys:
        batches.setdefault(journey.batch_id, []).append(journey)
    return batches


def _spec(journey: Journey) -> TrajectorySpec:
    """As a live replay of the same recording describes itself."""
    work = journey.work
    return TrajectorySpec(
        trajectory_id=work.trajectory_id,
        group_id=work.group_id,
        prompt_tokens=journey.context_tokens,
        max_tokens=UNLIMITED_TOKENS,
        context_tokens=journey.context_tokens,
        max_tokens_per_step=max(step.output_tokens for step in work.steps),
        known_total_tokens=work.total_tokens,
    )
