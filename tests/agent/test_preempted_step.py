"""One step's generation that is told to give its slot back, at every moment at which that can happen."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from heddle.agent.clock import TrajectoryClock
from heddle.agent.generation import StepGeneration
from heddle.agent.journal import JournalEntry
from heddle.agent.link import Grant
from heddle.agent.order import EngineLimits, LoopServices, PreparedPrompt, TrajectoryOrder
from heddle.agent.ports import (
    Engine,
    Generation,
    GenerationRequest,
    TokenChunk,
    ToolInvocation,
    ToolResult,
)
from heddle.agent.sessions import KeptSessions
from heddle.agent.tokens import TokenBuffer
from heddle.control.events import Event, GenerationInterrupted, StepGenerated
from heddle.coordinator.ledger import DecodeLedger
from heddle.engines.fake import FakeEngine, FakeModel
from heddle.environments.replay import ReplayEnvironment
from heddle.errors import EngineUnavailable
from heddle.records import StepRecord, Trajectory
from heddle.store.gates import GateViolation
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer
from heddle.text.parsers import ReplayParser
from heddle.types import (
    BatchId,
    FinishReason,
    GroupId,
    InterruptReason,
    Json,
    Limits,
    SamplingParams,
    TrajectoryId,
    WorkerId,
)

TOKENS = 30
SLOW = FakeModel(vocabulary=256, end_of_turn_id=TURN_END, mean_tokens=10_000, token_delay_s=0.005)


@dataclass
class Link:
    """Grants the same worker again as soon as its slot is back, unless it is to wait."""

    engine: Engine
    events: list[Event] = field(default_factory=list)
    on_grant: deque[Callable[[], None]] = field(default_factory=deque)

    def post(self, event: Event) -> None:
        self.events.append(event)

    async def granted(self, trajectory_id: TrajectoryId) -> Grant:
        await asyncio.sleep(0)
        if self.on_grant:
            self.on_grant.popleft()()
        return Grant(WorkerId("w0"), 1, self.engine, 0.0, None)

    @property
    def ends(self) -> list[tuple[str, int]]:
        """How each segment ended, and the tokens that it brought."""
        found: list[tuple[str, int]] = []
        for event in self.events:
            assert isinstance(event, StepGenerated | GenerationInterrupted)
            how = "generated" if isinstance(event, StepGenerated) else str(event.reason)
            found.append((how, event.output_tokens))
        return found


class Nowhere:
    """Journal, tools and observer of a step that needs none of them."""

    async def append(self, entry: JournalEntry) -> None:
        raise AssertionError("a generation journals nothing by itself")

    async def commit(self, trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> None:
        raise AssertionError("a generation commits nothing")

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        raise AssertionError("a generation runs no tool")

    def repeatable(self, backend: str) -> bool:
        return True

    def step_finished(self, step: StepRecord) -> None: ...

    def came_late(self, what: str) -> None: ...

    def record_refused(self, gates: Sequence[str]) -> None: ...

    def trajectory_finished(self, trajectory: Trajectory) -> None: ...


def make_step(link: Link, *, json_schema: Mapping[str, Json] | None = None) -> StepGeneration:
    """A step of ``TOKENS`` tokens, their end forced unless a grammar rules."""
    forced = None if json_schema is not None else (TOKENS,)
    prompt = PreparedPrompt(
        prompt_id="p",
        environment=ReplayEnvironment(),
        task={},
        messages=(),
        tools=(),
        prompt_ids=[1, 2, 3],
        forced_ids=[],
        json_schema=json_schema,
        parser=ReplayParser(((),)),
        metadata={},
        step_tokens=forced,
    )
    order = TrajectoryOrder(
        TrajectoryId("t"), BatchId("b"), GroupId("g"), 0, 0, prompt, SamplingParams(), Limits()
    )
    nowhere = Nowhere()
    services = LoopServices(
        link=link,
        ledger=DecodeLedger(),
        tokenizer=ByteTokenizer(),
        tools=nowhere,
        journal=nowhere,
        observer=nowhere,
        engine=EngineLimits(4096, 30.0, 30.0, 3),
        now=time.monotonic,
        finishing=asyncio.Semaphore(1),
        model="fake",
    )
    clock = TrajectoryClock(time.monotonic)
    buffer, sessions = TokenBuffer(prompt.prompt_ids), KeptSessions(order.trajectory_id)
    return StepGeneration(services, order, clock, buffer, sessions, step_index=0, max_new_tokens=TOKENS)


def make_engine() -> FakeEngine:
    """Slow enough to be interrupted."""
    return FakeEngine(slots=1, model=SLOW)


async def preempt_after(step: StepGeneration, tokens: int) -> None:
    """As soon as the step has this many tokens."""
    while len(step.sampled.token_ids) < tokens:
        await asyncio.sleep(0.001)
    step.preempt()


async def run(step: StepGeneration, *meanwhile: int) -> None:
    """To its end, preempted when it has so many tokens."""
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(step.run())
        for tokens in meanwhile:
            await preempt_after(step, tokens)


async def undisturbed() -> list[int]:
    step = make_step(Link(make_engine()))
    await run(step)
    return step.sampled.token_ids


async def test_what_was_sampled_is_kept_and_the_budget_holds() -> None:
    """Twice interrupted, one step: the same tokens as undisturbed, a logprob and a version for each."""
    link = Link(make_engine())
    step = make_step(link)
    await run(step, 5, 15)

    record = step.record()
    assert (record.preemptions, record.segments, record.output_tokens) == (2, 3, TOKENS)
    assert record.finish_reason is FinishReason.LENGTH
    assert step.sampled.token_ids == await undisturbed()
    assert len(step.sampled.logprobs) == len(step.sampled.weight_versions) == TOKENS
    assert [how for how, _ in link.ends] == ["preempted", "preempted", "generated"]
    assert sum(tokens for _, tokens in link.ends) == TOKENS


async def test_before_it_began_no_engine_is_asked() -> None:
    """The grant goes back at once, and the next one is used."""
    link = Link(make_engine())
    step = make_step(link)
    step.preempt()
    await run(step)

    assert link.ends == [("preempted", 0), ("generated", TOKENS)]
    record = step.record()
    assert (record.preemptions, record.segments) == (1, 1)


async def test_while_the_grant_is_on_its_way_it_goes_back_too() -> None:
    """Also a later grant; what the earlier segment brought is not counted twice."""
    link = Link(make_engine())
    step = make_step(link)
    link.on_grant.extend([lambda: None, step.preempt])
    await run(step, 5)

    assert [how for how, _ in link.ends] == ["preempted", "preempted", "generated"]
    assert link.ends[1][1] == 0
    assert sum(tokens for _, tokens in link.ends) == TOKENS


async def test_twice_told_is_told_once() -> None:
    """The second order finds the first at work."""
    link = Link(make_engine())
    step = make_step(link)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(step.run())
        await preempt_after(step, 5)
        step.preempt()

    assert step.record().preemptions == 1


async def test_a_grammar_starts_afresh() -> None:
    """Half a JSON object cannot be continued, so nothing of it is kept, nor counted."""
    link = Link(make_engine())
    step = make_step(link, json_schema={"type": "object"})
    await run(step, 5)

    assert [how for how, _ in link.ends] == ["preempted", "generated"]
    assert link.ends[0][1] == 0
    assert link.ends[1][1] == len(step.sampled.token_ids)


class Deaf(FakeEngine):
    """Its aborts fail."""

    async def abort(self, request_id: str) -> None:
        raise EngineUnavailable("no answer")


class Dying(FakeEngine):
    """It dies of the abort."""

    async def abort(self, request_id: str) -> None:
        self.crash("killed by an abort")


class Hasty(FakeEngine):
    """It is done before it hears of the abort."""

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        generation = await super().generate(request, on_tokens)
        await asyncio.sleep(0.05)
        return generation


@pytest.mark.parametrize(("engine", "after"), [(Deaf, 5), (Hasty, TOKENS)])
async def test_an_engine_that_cannot_be_stopped_ends_in_its_own_way(
    engine: type[FakeEngine], after: int
) -> None:
    """No preemption came of the order; the step is complete and the slot is free with it."""
    link = Link(engine(slots=1, model=SLOW))
    step = make_step(link)
    await run(step, after)

    assert link.ends == [("generated", TOKENS)]
    assert step.record().preemptions == 0


async def test_an_engine_that_dies_meanwhile_is_a_fault_and_no_preemption() -> None:
    """What it brought is kept, and the fault is counted as one."""
    link = Link(Dying(slots=1, model=SLOW))
    step = make_step(link)
    replacement = make_engine()

    def replace() -> None:
        link.engine = replacement

    link.on_grant.extend([lambda: None, replace])
    await run(step, 5)

    assert [how for how, _ in link.ends] == [str(InterruptReason.WORKER_LOST), "generated"]
    assert step.sampled.token_ids == await undisturbed()
    assert step.record().preemptions == 0


async def test_a_cancelled_step_leaves_no_abort_behind() -> None:
    """The task that aborts ends with its step, and the engine is free."""
    engine = make_engine()
    step = make_step(Link(engine))
    task = asyncio.create_task(step.run())
    await preempt_after(step, 3)
    task.cancel()
    await asyncio.wait({task})

    assert [other for other in asyncio.all_tasks() if other is not asyncio.current_task()] == []
    assert (await engine.load()).running == 0
