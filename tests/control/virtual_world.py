"""A small discrete-event data plane: recorded trajectories on workers that slow down as they fill up.

It obeys every command and holds the control plane to slots and budgets. Times are virtual seconds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.control.build import PlaneSettings, build_plane
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
    BatchSubmitted,
    Event,
    GenerationInterrupted,
    PoolRequested,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryFinished,
    TrajectorySpec,
    WorkerReady,
)
from heddle.types import BatchId, GroupId, InterruptReason, StopReason, TrajectoryId, WorkerId

STEP_S = (0.0, 0.025, 0.044, 0.058, 0.072)
"""Seconds per decoding step by running batch: the embedded engine with one thread."""

ABORT_S = 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """One trajectory: tokens of each step, and seconds of the tool that follows each but the last."""

    output_tokens: tuple[int, ...]
    tool_s: tuple[float, ...]
    prompt_tokens: int = 20

    @property
    def total(self) -> int:
        return sum(self.output_tokens)


@dataclass(slots=True)
class _Life:
    recorded: Recorded
    step: int = 0
    done: int = 0
    """Whole tokens of the current step, of segments that have ended."""
    segment: float = 0.0
    """Tokens of the running segment."""
    worker: WorkerId | None = None
    waiting_since: float | None = 0.0
    waited_s: float = 0.0
    preemptions: Counter[int] = field(default_factory=Counter)
    finished_at: float | None = None
    sampled: int = 0


class VirtualWorld:
    """Runs one batch to its end."""

    def __init__(
        self,
        settings: PlaneSettings,
        recorded: Sequence[Recorded],
        *,
        workers: int = 2,
        kv_capacity_tokens: int | None = None,
    ) -> None:
        self.settings = settings
        self.plane = build_plane(settings)
        self.now = 0.0
        self.lives = {TrajectoryId(f"t{i:03d}"): _Life(r) for i, r in enumerate(recorded)}
        self.events: list[tuple[float, Event]] = []
        self._due: list[tuple[float, int, TrajectoryId]] = []
        """Tools and aborts that will be over; an abort is told from a tool by where its trajectory is."""
        self._order = 0
        self._workers = workers
        self._kv_capacity_tokens = kv_capacity_tokens

    def run(self, *, most_events: int = 100_000) -> None:
        """Raises ``AssertionError`` where it does not come to an end."""
        self.send(PoolRequested(self._workers))
        specs = tuple(
            TrajectorySpec(
                name,
                GroupId("g"),
                life.recorded.prompt_tokens,
                1 << 20,
                life.recorded.prompt_tokens,
                max_tokens_per_step=max(life.recorded.output_tokens),
                known_total_tokens=life.recorded.total,
            )
            for name, life in self.lives.items()
        )
        self.send(BatchSubmitted(BatchId("b"), specs))
        while any(life.finished_at is None for life in self.lives.values()):
            self._advance()
            assert len(self.events) < most_events, "it does not come to an end"

    @property
    def makespan_s(self) -> float:
        return max(life.finished_at or 0.0 for life in self.lives.values())

    @property
    def longest_waited_s(self) -> float:
        """Seconds that the trajectory with the most tokens waited for slots."""
        return max(self.lives.values(), key=lambda life: life.recorded.total).waited_s

    def send(self, event: Event) -> None:
        self.events.append((self.now, event))
        commands = self.plane.handle(event, self.now)
        assert self.plane.last_ignored is None
        self.plane.state.check_invariants()
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case StartWorker(spec=spec):
                self.send(WorkerReady(spec.worker_id, spec.slots, self._kv_capacity_tokens))
            case Generate(trajectory_id=name, worker_id=worker, step_index=step):
                life = self.lives[name]
                assert life.waiting_since is not None
                assert (life.worker, life.step) == (None, step)
                life.waited_s += self.now - life.waiting_since
                life.waiting_since, life.worker, life.segment = None, worker, 0.0
                assert len(self._running(worker)) <= self.settings.slots
            case Preempt(trajectory_id=name, worker_id=worker):
                assert self.lives[name].worker == worker
                self._later(ABORT_S, name)
            case Cancel() | StopWorker() | Transfer() | CancelTransfer():
                raise AssertionError(f"nobody asked for {command}")

    def _later(self, seconds: float, name: TrajectoryId) -> None:
        self._order += 1
        heapq.heappush(self._due, (self.now + seconds, self._order, name))

    def _running(self, worker: WorkerId) -> list[TrajectoryId]:
        return [name for name, life in self.lives.items() if life.worker == worker]

    def _advance(self) -> None:
        """To the next thing that happens."""
        loads = Counter(life.worker for life in self.lives.values() if life.worker is not None)
        ends = [
            (self._left(life) * STEP_S[loads[life.worker]], name)
            for name, life in self.lives.items()
            if life.worker is not None
        ]
        due_s = self._due[0][0] - self.now if self._due else float("inf")
        first = min(ends, default=(float("inf"), TrajectoryId("")))
        elapsed = max(0.0, min(first[0], due_s))
        assert elapsed < float("inf"), "nothing will ever happen"
        for life in self.lives.values():
            if life.worker is not None:
                life.segment += elapsed / STEP_S[loads[life.worker]]
        self.now += elapsed
        if first[0] <= due_s:
            self._end_step(first[1])
        else:
            self._end_due(heapq.heappop(self._due)[2])

    def _left(self, life: _Life) -> float:
        return max(0.0, life.recorded.output_tokens[life.step] - life.done - life.segment)

    def _end_step(self, name: TrajectoryId) -> None:
        life = self.lives[name]
        assert life.worker is not None
        tokens = life.recorded.output_tokens[life.step] - life.done
        event = StepGenerated(name, life.worker, life.step, 0, 0, tokens)
        life.sampled += tokens
        life.worker, life.done = None, 0
        self.send(event)
        if life.step + 1 == len(life.recorded.output_tokens):
            life.finished_at = self.now
            self.send(TrajectoryFinished(name, StopReason.COMPLETED))
            return
        self.send(ToolsStarted(name, life.step, ("python",)))
        self._later(life.recorded.tool_s[life.step], name)
        life.step += 1

    def _end_due(self, name: TrajectoryId) -> None:
        life = self.lives[name]
        if life.worker is not None:
            self._interrupt(name, life)
        elif life.waiting_since is None and life.finished_at is None and not life.done:
            life.waiting_since = self.now
            self.send(ToolsFinished(name, life.step - 1, 3))

    def _interrupt(self, name: TrajectoryId, life: _Life) -> None:
        assert life.worker is not None
        tokens = min(int(life.segment), life.recorded.output_tokens[life.step] - life.done)
        event = GenerationInterrupted(name, life.worker, life.step, tokens, InterruptReason.PREEMPTED)
        life.done += tokens
        life.sampled += tokens
        life.preemptions[life.step] += 1
        life.worker, life.waiting_since = None, self.now
        self.send(event)
