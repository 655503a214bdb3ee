"""The transfer desk: every order gets one answer, in time, whatever the engines do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from heddle.agent.ports import Engine, EngineCapabilities
from heddle.control.commands import Transfer
from heddle.control.events import Event, TransferFailed, TransferFinished
from heddle.coordinator.transfers import TransferDesk
from heddle.engines.fake import FakeEngine, FakeModel
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import EngineRejected
from heddle.records import MoveRecord
from heddle.types import PrefixTransfer, TrajectoryId, WorkerId

CONTEXT = list(range(64))
T, A, B = TrajectoryId("t"), WorkerId("a"), WorkerId("b")


class SlowEngine(FakeEngine):
    """Takes its time to hand over, and to let go when that is cancelled."""

    def __init__(self, *, letting_go_s: float = 0.0, refusal: str | None = None) -> None:
        super().__init__(slots=1, model=FakeModel(transfer_delay_s=60.0))
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self._letting_go_s = letting_go_s
        self._refusal = refusal

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        self.begun.set()
        if self._refusal is not None:
            raise EngineRejected(self._refusal)
        try:
            return await super().transfer(token_ids, target, session_id)
        finally:
            await uninterrupted(self._let_go())

    async def _let_go(self) -> None:
        await asyncio.sleep(self._letting_go_s)
        self.let_go.set()


class PlainEngine(FakeEngine):
    """Can compute a prefix and no more."""

    capabilities = EngineCapabilities(prefix_warmup=True)


@dataclass
class Run:
    """A trajectory in the tools of its third step."""

    moves: list[tuple[int, MoveRecord]] = field(default_factory=list)
    visited: list[Engine] = field(default_factory=list)
    steps_done: int = 3

    def context_ids(self) -> list[int]:
        return CONTEXT

    def visit(self, engine: Engine) -> str:
        self.visited.append(engine)
        return "t"

    def note_move(self, step_index: int, move: MoveRecord) -> None:
        self.moves.append((step_index, move))

    @property
    def move(self) -> MoveRecord:
        [(step_index, move)] = self.moves
        assert step_index == 2
        return move


@dataclass
class Rig:
    """A desk, and what it answers."""

    desk: TransferDesk
    run: Run
    answers: asyncio.Queue[Event]
    observed: list[MoveRecord]

    def order(self, source: Engine, target: Engine, deadline_s: float = 30.0) -> None:
        self.desk.start(Transfer(T, A, B, len(CONTEXT), deadline_s), self.run, source, target)

    async def answer(self) -> Event:
        return await asyncio.wait_for(self.answers.get(), timeout=10)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    answers: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        observed: list[MoveRecord] = []
        desk = TransferDesk(post=answers.put_nowait, observe=observed.append, now=loop.time, tasks=tasks)
        run = Run()
        yield Rig(desk, run, answers, observed)
        await desk.close()
    assert observed == [move for _, move in run.moves]
    assert answers.empty(), "an order was answered twice"


async def computed() -> FakeEngine:
    engine = FakeEngine(slots=1)
    await engine.warm_prefix(CONTEXT)
    return engine


async def test_a_copy_that_is_made_is_told_and_recorded() -> None:
    """The target has the prefix when the control plane hears of it."""
    source, target = await computed(), FakeEngine(slots=1)
    async with rig() as made:
        made.order(source, target)
        assert await made.answer() == TransferFinished(T, A, B, len(CONTEXT))
        assert (await target.warm_prefix(CONTEXT)).tokens == len(CONTEXT)
        assert (made.run.move.outcome, made.run.move.moved_tokens) == ("moved", len(CONTEXT))
        assert made.run.visited == [target], "its session there is closed with the trajectory"


async def test_a_refusal_and_a_dead_engine_are_answers() -> None:
    """With the engine's own words."""
    async with rig() as made:
        made.order(SlowEngine(refusal="no room"), FakeEngine(slots=1))
        assert await made.answer() == TransferFailed(T, A, B, "no room")
        assert (made.run.move.outcome, made.run.move.detail) == ("failed", "no room")
    dead = await computed()
    dead.crash("died")
    async with rig() as made:
        made.order(dead, FakeEngine(slots=1))
        assert await made.answer() == TransferFailed(T, A, B, "died")


async def test_the_deadline_holds_even_if_the_engine_does_not_let_go() -> None:
    """What it still does then ends with the desk."""
    source = SlowEngine(letting_go_s=0.3)
    await source.warm_prefix(CONTEXT)
    async with rig() as made:
        made.order(source, FakeEngine(slots=1), deadline_s=0.05)
        assert await made.answer() == TransferFailed(T, A, B, "not done after 0.05 s")
        assert not source.let_go.is_set()
    assert source.let_go.is_set()


async def test_a_withdrawal_is_answered_when_the_engine_has_let_go() -> None:
    """So that the two workers are free when the control plane takes them as free."""
    source = SlowEngine(letting_go_s=0.1)
    await source.warm_prefix(CONTEXT)
    async with rig() as made:
        made.order(source, FakeEngine(slots=1))
        await source.begun.wait()
        made.desk.withdraw(T)
        assert made.run.move.outcome == "withdrawn", "noted at once: the trajectory may end before the answer"
        assert await made.answer() == TransferFailed(T, A, B, "withdrawn")
        assert source.let_go.is_set()
        assert made.run.move.outcome == "withdrawn"


async def test_a_withdrawal_before_the_first_turn_or_after_the_end_is_harmless() -> None:
    """Commands come as fast as the control plane thinks."""
    async with rig() as made:
        made.order(await computed(), FakeEngine(slots=1))
        made.desk.withdraw(T)
        assert await made.answer() == TransferFailed(T, A, B, "withdrawn")
        made.desk.withdraw(T)


async def test_a_copy_done_before_its_withdrawal_is_told_and_recorded_as_withdrawn() -> None:
    """The control plane keeps the trajectory where it is; its record says so."""
    source, target = await computed(), FakeEngine(slots=1)
    async with rig() as made:
        made.order(source, target)
        while (await target.load()).kv_used_tokens == 0:
            await asyncio.sleep(0)
        made.desk.withdraw(T)
        answer = await made.answer()
        assert isinstance(answer, TransferFinished | TransferFailed)
        assert made.run.move.outcome == "withdrawn"


async def test_an_engine_that_cannot_hand_over_has_the_target_compute_the_prefix() -> None:
    """The other transport: a warm-up while the tools run."""
    target = PlainEngine(slots=1)
    await target.warm_prefix(CONTEXT[:16])
    async with rig() as made:
        made.order(PlainEngine(slots=1), target)
        assert await made.answer() == TransferFinished(T, A, B, 16)
        assert (made.run.move.moved_tokens, made.run.move.computed_tokens) == (16, 48)
    assert (await target.warm_prefix(CONTEXT)).tokens == len(CONTEXT)


async def test_engines_that_can_do_neither_are_told_apart() -> None:
    """By a reason in the answer."""
    bare = PlainEngine(slots=1)
    bare.capabilities = EngineCapabilities()
    async with rig() as made:
        made.order(bare, bare)
        answer = await made.answer()
        assert isinstance(answer, TransferFailed)
        assert "neither engine" in answer.reason


async def test_closing_ends_transfers_and_answers_nothing() -> None:
    """Whoever closes stops listening."""
    source = SlowEngine()
    await source.warm_prefix(CONTEXT)
    async with rig() as made:
        made.order(source, FakeEngine(slots=1))
        await source.begun.wait()
    assert source.let_go.is_set()
    assert made.run.moves == []


async def test_a_fault_of_our_own_comes_out() -> None:
    """What is not an engine's error is a bug, and nobody swallows it."""

    class Broken(FakeEngine):
        async def transfer(
            self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
        ) -> PrefixTransfer:
            raise ZeroDivisionError

    async def order() -> None:
        async with rig() as made:
            made.order(Broken(slots=1), FakeEngine(slots=1))
            await made.answer()

    with pytest.raises(ExceptionGroup) as raised:
        await order()
    assert raised.group_contains(ZeroDivisionError)
