"""A data plane that holds the control plane to what it promised, whatever happens to it."""

from __future__ import annotations

from collections import Counter

from hypothesis.stateful import RuleBasedStateMachine

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
    DispatchPaused,
    DispatchResumed,
    Event,
    GenerationInterrupted,
    StepGenerated,
    ToolsFinished,
    TrajectoryFinished,
    TransferFailed,
    TransferFinished,
    WorkerDrainRequested,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.control.log import encode_entry
from heddle.scheduling import make_scheduler
from heddle.types import (
    TrajectoryId,
    WorkerId,
)


class RandomDataPlane(RuleBasedStateMachine):
    """Knows which generations and transfers it was ordered to run; ``obey`` holds the control plane to it."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = PlaneSettings(pool="1+1", slots=2)
        self.plane = build_plane(self.settings)
        self.now = 0.0
        self.lines: list[bytes] = []
        self.history: list[Event] = []
        self.batches = 0
        self.open: dict[TrajectoryId, int] = {}
        """Open trajectories and the steps they have done."""
        self.running: dict[TrajectoryId, tuple[WorkerId, int]] = {}
        """Generations that were ordered and have not ended: where, and of which step."""
        self.in_hand: set[TrajectoryId] = set()
        """Between steps or in tools."""
        self.ordered_to_end: set[TrajectoryId] = set()
        self.told_to_stop: set[TrajectoryId] = set()
        """Generations that were preempted and have not ended yet."""
        self.preemptions: Counter[tuple[TrajectoryId, int]] = Counter()
        """Interruptions on order, by trajectory and step."""
        self.slots: dict[WorkerId, int] = {}
        """Of the workers that are up."""
        self.known_workers: list[WorkerId] = []
        self.stop_ordered: list[WorkerId] = []
        self.paused = False
        self.transfers: dict[TrajectoryId, Transfer] = {}
        """Ordered and not answered."""
        self.broken_off: set[TrajectoryId] = set()
        """Of these, the cancelled ones."""

    # ------------------------------------------------------------------------------------ plumbing

    def send(self, event: Event) -> None:
        """Tell the control plane, note what ends with this event, and obey."""
        self.now += 0.25
        self.history.append(event)
        self.note(event)
        self.told_to_stop &= self.running.keys()
        commands = self.plane.handle(event, self.now)
        self.lines.append(encode_entry(len(self.lines), self.now, event, commands, self.plane.last_ignored))
        for command in commands:
            self.obey(command)

    def note(self, event: Event) -> None:
        match event:
            case StepGenerated(trajectory_id=name, worker_id=worker, step_index=step):
                if self.running.get(name) == (worker, step):
                    del self.running[name]
                    self.in_hand.add(name)
                    self.open[name] += 1
            case GenerationInterrupted(trajectory_id=name, worker_id=worker, step_index=step):
                if self.running.get(name) == (worker, step):
                    del self.running[name]
            case ToolsFinished(trajectory_id=name, step_index=step):
                if name in self.in_hand and step == self.open[name] - 1:
                    self.in_hand.discard(name)
            case TrajectoryFinished(trajectory_id=name):
                self.open.pop(name, None)
                self.running.pop(name, None)
                self.in_hand.discard(name)
                self.ordered_to_end.discard(name)
            case BatchSubmitted(trajectories=specs):
                for spec in specs:
                    self.open.setdefault(spec.trajectory_id, spec.steps_done)
            case WorkerLost(worker_id=worker) | WorkerDrainRequested(worker_id=worker):
                self.slots.pop(worker, None)
                if isinstance(event, WorkerLost) and not event.will_restart and worker in self.stop_ordered:
                    self.stop_ordered.remove(worker)
                    self.known_workers.remove(worker)
            case WorkerStopped(worker_id=worker):
                if worker in self.stop_ordered:
                    self.stop_ordered.remove(worker)
                    self.known_workers.remove(worker)
            case WorkerReady(worker_id=worker, slots=slots):
                up = {w.worker_id: w.phase for w in self.plane.worker_views()}
                if up.get(worker) in ("starting", "down"):
                    self.slots[worker] = slots
            case TransferFinished(trajectory_id=name) | TransferFailed(trajectory_id=name):
                order = self.transfers.get(name)
                if order is not None and (order.source, order.target) == (event.source, event.target):
                    del self.transfers[name]
                    self.broken_off.discard(name)
            case DispatchPaused():
                self.paused = True
            case DispatchResumed():
                self.paused = False
            case _:
                pass

    def obey(self, command: Command) -> None:
        match command:
            case Generate(trajectory_id=name, worker_id=worker, step_index=step):
                assert not self.paused
                assert name in self.open
                assert name not in self.running
                assert name not in self.in_hand
                assert name not in self.ordered_to_end
                assert step == self.open[name]
                assert worker in self.slots
                self.running[name] = (worker, step)
                load = sum(where == worker for where, _ in self.running.values())
                assert load <= self.slots[worker]
            case Preempt(trajectory_id=name, worker_id=worker):
                assert not self.paused
                assert self.running[name][0] == worker
                assert name not in self.ordered_to_end
                assert not any(self.running[other][0] == worker for other in self.told_to_stop)
                self.told_to_stop.add(name)
                self.preemptions[name, self.open[name]] += 1
                assert self.preemptions[name, self.open[name]] <= self.settings.max_preemptions_per_step
                self.gains_strictly(name, worker)
            case Cancel(trajectory_id=name):
                assert name in self.open
                assert name not in self.ordered_to_end
                self.ordered_to_end.add(name)
            case Transfer(trajectory_id=name, source=source, target=target):
                assert name in self.in_hand
                assert name not in self.ordered_to_end
                assert {source, target} <= self.slots.keys()
                busy = {w for order in self.transfers.values() for w in (order.source, order.target)}
                assert source not in busy
                assert target not in busy
                self.transfers[name] = command
            case CancelTransfer(trajectory_id=name):
                assert name in self.transfers
                assert name not in self.broken_off
                self.broken_off.add(name)
            case StartWorker(spec=spec):
                assert spec.worker_id not in self.known_workers
                self.known_workers.append(spec.worker_id)
            case StopWorker(worker_id=worker):
                assert worker in self.known_workers
                assert worker not in self.stop_ordered
                assert all(where != worker for where, _ in self.running.values())
                if worker in {view.worker_id for view in self.plane.worker_views()}:
                    self.stop_ordered.append(worker)
                else:
                    self.known_workers.remove(worker)  # given up: nobody will report it as stopped

    def gains_strictly(self, name: TrajectoryId, worker: WorkerId) -> None:
        """Whoever is next outranks a victim, which may be stopped, by more than the margin."""
        margin = make_scheduler(
            self.settings.scheduler, margin_tokens=self.settings.preempt_margin_tokens
        ).margin
        assert margin is not None
        state = self.plane.state
        contender = state.workers[worker].queue.peek()
        victim = state.trajectories[name]
        assert contender.rank > victim.rank + margin
        assert contender.batch_id == victim.batch_id
        assert victim.preemptible
        assert state.workers[worker].running == state.workers[worker].slots
