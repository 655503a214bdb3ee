"""The workers of a simulation: started, lost, slowed down and stopped, with the prefixes that travel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from heddle.control.commands import CancelTransfer, Transfer
from heddle.control.events import (
    Event,
    TransferFailed,
    TransferFinished,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from heddle.errors import ConfigError
from heddle.simulate.agenda import Agenda
from heddle.simulate.engine import EngineSpeed, SimulatedEngine
from heddle.simulate.hardware import Hardware
from heddle.simulate.journey import Journey
from heddle.simulate.options import WorkerCrash
from heddle.simulate.prefix_cache import Entry, PrefixCache
from heddle.simulate.request import Request
from heddle.simulate.result import WorkerUse
from heddle.types import TrajectoryId, WorkerId, WorkerSpec


@dataclass(slots=True, eq=False)
class _Member:
    spec: WorkerSpec
    slots: int
    engine: SimulatedEngine
    up: bool = False
    began_at: float | None = None
    """When it got its GPUs; ``None`` while it waits for them."""
    ended_at: float | None = None
    """When it gave them back."""
    generated_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Copy:
    """A transfer under way. The caches are kept, not the workers: a worker that dies gets a new one."""

    command: Transfer
    source: PrefixCache
    target: PrefixCache
    entry: Entry
    tokens: int


class Workers:
    """Carries out orders about workers and transfers.

    No two workers share a GPU, but for a first pool that is larger than the budget: who is started later
    waits until others have been stopped.
    """

    def __init__(self, agenda: Agenda, hardware: Hardware, post: Callable[[Event], None]) -> None:
        self._agenda = agenda
        self._hardware = hardware
        self._post = post
        self._members: dict[WorkerId, _Member] = {}
        self._copies: dict[TrajectoryId, _Copy] = {}
        self._gpus = hardware.gpus
        """That there are."""
        self._held = 0
        """By workers that were started and not stopped."""
        self._waiting: deque[_Member] = deque()
        """For GPUs."""
        self._start_s = 0.0
        """Of the first pool, which is up when the first batch comes, as a pool usually is."""

    # ------------------------------------------------------------------------------------ workers

    def start(self, spec: WorkerSpec, ended: Callable[[Request], None]) -> None:
        """Bring a worker up. Raises ``ConfigError`` for a degree that has no step times."""
        times = self._hardware.engine(spec.tp_degree)
        slots = self._hardware.slots(spec.tp_degree, spec.slots)
        speed = EngineSpeed(
            curves=times.curves(slots),
            prefill_tokens_per_s=times.prefill_tokens_per_s,
            kv_capacity_tokens=times.kv_capacity_tokens,
            prefix_capacity_tokens=times.prefix_capacity_tokens or times.kv_capacity_tokens,
        )
        engine = SimulatedEngine(self._agenda, speed, self._hardware.rules, ended)
        member = self._members[spec.worker_id] = _Member(spec, slots, engine)
        self._waiting.append(member)
        self._start_waiting()

    def settle_first(self) -> None:
        """The first pool was ordered: it starts, however large it is; later starts take their time."""
        self._gpus = max(self._gpus, self._held + sum(member.spec.tp_degree for member in self._waiting))
        self._start_waiting()
        self._start_s = self._hardware.start_s

    def stop_worker(self, worker_id: WorkerId) -> None:
        """Nothing runs there any more."""
        member = self._members[worker_id]
        member.up = False
        self._agenda.after(0.0, partial(self._stopped, member))

    def _start_waiting(self) -> None:
        """In the order of the orders: a large worker is not overtaken by small ones."""
        while self._waiting and self._held + self._waiting[0].spec.tp_degree <= self._gpus:
            member = self._waiting.popleft()
            member.began_at = self._agenda.now
            self._held += member.spec.tp_degree
            self._agenda.after(self._start_s, partial(self._ready, member))

    def _stopped(self, member: _Member) -> None:
        member.ended_at = self._agenda.now
        if member in self._waiting:
            self._waiting.remove(member)
        elif member.began_at is not None:
            self._held -= member.spec.tp_degree
        self._start_waiting()
        self._post(WorkerStopped(member.spec.worker_id))

    def crash(self, fault: WorkerCrash, lost: Callable[[Request], None]) -> None:
        """A worker dies; nothing happens to one that is down. ``lost`` hears of each of its requests."""
        member = self._member(fault.worker_id)
        if not member.up:
            return
        member.up = False
        requests = member.engine.die()
        restarts = fault.restart_s is not None
        if fault.restart_s is not None:
            self._agenda.after(fault.restart_s, partial(self._ready, member))
        for request in requests:
            lost(request)
        self._post(WorkerLost(fault.worker_id, "injected crash", restarts))

    def slow_down(self, worker_id: WorkerId, factor: float) -> None:
        """Everything there takes ``factor`` times as long as the profile says, from now on."""
        self._member(worker_id).engine.set_factor(factor)

    def uses(self) -> tuple[WorkerUse, ...]:
        """All workers that there ever were."""
        return tuple(
            WorkerUse(
                worker_id=member.spec.worker_id,
                tp_degree=member.spec.tp_degree,
                slots=member.slots,
                busy_s=member.engine.busy_s,
                generated_tokens=member.generated_tokens,
                began_at=member.began_at,
                ended_at=member.ended_at,
            )
            for member in self._members.values()
        )

    def oversized(self) -> int:
        """Generations that were larger than the whole memory of their worker, and ran all the same."""
        return sum(member.engine.oversized for member in self._members.values())

    def _ready(self, member: _Member) -> None:
        if member.ended_at is not None:
            return  # it was stopped before it came up
        times = self._hardware.engine(member.spec.tp_degree)
        member.up = True
        self._post(
            WorkerReady(
                member.spec.worker_id,
                member.slots,
                times.kv_capacity_tokens,
                times.prefix_capacity_tokens,
                self._hardware.rules.share_prompts and self._hardware.rules.share_running,
            )
        )

    def _member(self, worker_id: WorkerId) -> _Member:
        """Raises ``ConfigError`` where a fault names a worker that there is not."""
        member = self._members.get(worker_id)
        if member is None:
            raise ConfigError(f"there is no worker {worker_id}; there are {', '.join(self._members)}")
        return member

    # ----------------------------------------------------------------------------------- requests

    def send(self, worker_id: WorkerId, request: Request) -> None:
        """Hand a request to an engine."""
        self._members[worker_id].engine.submit(request)

    def stop(self, worker_id: WorkerId, request: Request) -> None:
        """Ask an engine to let go of a request."""
        self._members[worker_id].engine.stop(request)

    def count_tokens(self, worker_id: WorkerId, tokens: int) -> None:
        """So many were sampled there and kept."""
        self._members[worker_id].generated_tokens += tokens

    # ---------------------------------------------------------------------------------- transfers

    def transfer(self, command: Transfer, journey: Journey) -> None:
        """Copy a prefix; the answer comes as an event, later."""
        source, target = self._members[command.source], self._members[command.target]
        entry = source.engine.cache.entry(command.trajectory_id)
        tokens = source.engine.cache.cached_tokens(
            command.trajectory_id, journey.work.group_id, journey.shared_prompt_tokens
        )
        tokens = min(tokens, command.context_tokens)
        if entry is None or not tokens or not (source.up and target.up):
            self._fail(command, "the source has nothing of it any more")
            return
        seconds = self._hardware.link.seconds(tokens)
        source.engine.cache.pin(entry)
        copy = _Copy(command, source.engine.cache, target.engine.cache, entry, tokens)
        self._copies[command.trajectory_id] = copy
        if seconds > command.deadline_s:
            self._agenda.after(command.deadline_s, partial(self._break_off, copy, "it took too long"))
        else:
            self._agenda.after(seconds, partial(self._arrived, copy, journey))

    def cancel_transfer(self, command: CancelTransfer) -> None:
        """Break a transfer off; its answer still comes."""
        copy = self._copies.get(command.trajectory_id)
        if copy is not None:
            self._break_off(copy, "cancelled")

    def _arrived(self, copy: _Copy, journey: Journey) -> None:
        command = copy.command
        if self._copies.get(command.trajectory_id) is not copy:
            return
        del self._copies[command.trajectory_id]
        copy.source.unpin(copy.entry)
        copy.target.receive(
            command.trajectory_id, journey.work.group_id, journey.shared_prompt_tokens, copy.tokens
        )
        self._post(TransferFinished(command.trajectory_id, command.source, command.target, copy.tokens))

    def _break_off(self, copy: _Copy, reason: str) -> None:
        if self._copies.get(copy.command.trajectory_id) is not copy:
            return
        del self._copies[copy.command.trajectory_id]
        copy.source.unpin(copy.entry)
        self._fail(copy.command, reason)

    def _fail(self, command: Transfer, reason: str) -> None:
        failed = TransferFailed(command.trajectory_id, command.source, command.target, reason)
        self._agenda.after(0.0, partial(self._post, failed))
