"""The agent loop: one coroutine per trajectory, from its first grant to its committed record.

Numbered as it loops:
1. generate a step (segments, retries: ``generation.py``);
2. say so, and journal it;
3. parse the tool calls, and let the environment react (tools run here);
4. append the observation, token-exact, and journal it;
5. say so; the control plane grants the next generation when it sees fit.
A limit, the environment, a fault or somebody outside ends it. Then: reward, record, gates, commit.

Owns the tokens, the transcript and the clock of its trajectory. Knows no scheduling: it asks for a grant
and waits. Cancelling the coroutine (a shutdown) leaves the trajectory open, to be resumed from its
journal; ``cancel`` ends it for good.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace

from heddle.agent import journal
from heddle.agent.boundary import TrajectoryEnded, call_reward, call_step, environment_ending
from heddle.agent.clock import TrajectoryClock
from heddle.agent.ends import limit_reached
from heddle.agent.finish import FinishedRun, finish
from heddle.agent.generation import StepGeneration
from heddle.agent.invoker import RecordingInvoker
from heddle.agent.journal import JournalEntry, TrajectoryJournal
from heddle.agent.link import Ending
from heddle.agent.once import CallGuard
from heddle.agent.order import LoopServices, TrajectoryOrder
from heddle.agent.ports import Engine, Episode, Reward, StepOutcome, Turn
from heddle.agent.progress import Progress, turn_text
from heddle.agent.resume import Resumption
from heddle.agent.room import TokenRoom
from heddle.agent.segment import SampledArrays
from heddle.agent.sessions import KeptSessions
from heddle.control.events import ToolsFinished, ToolsStarted, TrajectoryEnding, TrajectoryFinished
from heddle.errors import ConfigError
from heddle.records import MoveRecord, StepRecord
from heddle.types import FinishReason, Message, StopReason, TrajectoryStatus

REWARD_DEADLINE_S = 120.0
"""Longest an environment may take to judge an episode; its own tools have shorter limits."""


class TrajectoryRun:
    """Single use: ``await run()`` once. ``restore`` first, where a journal exists."""

    def __init__(self, services: LoopServices, order: TrajectoryOrder) -> None:
        self._services = services
        self.order = order
        self._clock = TrajectoryClock(services.now)
        self._progress = Progress(order.prompt)
        self._sessions = KeptSessions(order.trajectory_id)
        context_tokens = services.engine.context_tokens
        self._room = TokenRoom(order.limits, order.prompt, self._progress.buffer, context_tokens)
        self._journal = TrajectoryJournal(services.journal, order.trajectory_id, order.attempt)
        self._tools = CallGuard(services.tools, self._journal, services.engine.max_tool_retries)
        self._generation: StepGeneration | None = None
        self._preempted_early = False
        """The grant was taken back before this coroutine came to ask for it."""
        self._requested: Ending | None = None
        self._scope: asyncio.Timeout | None = None

    # ------------------------------------------------------------------------------- from outside

    @property
    def context_tokens(self) -> int:
        return len(self._progress.buffer)

    @property
    def sampled_tokens(self) -> int:
        return self._progress.buffer.sampled_tokens

    @property
    def steps_done(self) -> int:
        return len(self._progress.steps)

    @property
    def between(self) -> bool:
        """Whether the last step is generated but not yet observed."""
        return self._progress.between

    def context_ids(self) -> list[int]:
        """Everything that it was prompted with, generated and observed."""
        return self._progress.buffer.context()

    def visit(self, engine: Engine) -> str:
        """It is about to have a prefix there; returns the name under which the engine may keep it."""
        self._sessions.note(engine)
        return self._sessions.session_id

    def note_move(self, step_index: int, move: MoveRecord) -> None:
        """Remember what became of a move that was tried during the tools of this step."""
        self._progress.moved(step_index, move)

    @property
    def generating(self) -> bool:
        """Whether a step is being generated, pauses between its segments included."""
        return self._generation is not None

    def cancel(self, ending: Ending) -> None:
        """End the trajectory for good. Too late (it is being finished already) is a no-op."""
        if self._requested is not None:
            return
        self._requested = ending
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def preempt(self) -> None:
        """Give the slot back as soon as the engine lets go, and wait for the next grant.

        For whoever gave the grant: between that and ``StepGenerated`` or ``GenerationInterrupted`` only.
        """
        if self._generation is None:
            self._preempted_early = True
        else:
            self._generation.preempt()

    def restore(self, entries: Sequence[JournalEntry]) -> None:
        """Take over what an earlier process journalled. Before ``run``, and only then.

        Raises ``ConfigError`` where another model or another prompt would go on: their tokens do not mix.
        Raises ``StoreError`` that names an entry which is not what an agent loop writes.
        """
        resumption = Resumption(self._services, self.order, self._progress, self._clock, self._tools)
        for entry in entries:
            resumption.take(entry)
            self._journal.go_on_after(entry)
        self.order = replace(self.order, attempt=self._journal.attempt)

    # ------------------------------------------------------------------------------------ the loop

    async def run(self) -> StopReason:
        """Run to the end and commit the record; the reason in it. Raises ``StoreError``."""
        if self.order.attempt:
            await self._journal.append(journal.RESUMED, journal.ResumedEntry(self._clock.wall))
        ending = await self._run_until_end()
        self._keep_partial_step()
        self._services.link.post(TrajectoryEnding(self.order.trajectory_id))
        ending, reward = await self._judge(ending)
        result = FinishedRun(
            order=self.order,
            ending=ending,
            reward=reward,
            progress=self._progress,
            clock=self._clock,
        )
        reason = await finish(self._services, result)
        self._services.link.post(TrajectoryFinished(self.order.trajectory_id, reason))
        await self._sessions.close()
        return reason

    async def _run_until_end(self) -> Ending:
        try:
            left_s = max(0.0, self.order.limits.timeout_s - self._clock.wall)
            async with asyncio.timeout(left_s) as self._scope:
                if self._requested is not None:
                    return self._requested
                await self._iterate()
        except TrajectoryEnded as ended:
            return ended.ending
        except TimeoutError:
            return self._requested or Ending(StopReason.TIMED_OUT)
        finally:
            self._scope = None
        raise AssertionError("the loop ends by TrajectoryEnded only")

    async def _judge(self, ending: Ending) -> tuple[Ending, Reward | None]:
        """The reward, and the ending that stands after it: judging can fail, and be cancelled, too."""
        if self._requested is not None:
            return self._requested, None
        if ending.reason.status is TrajectoryStatus.FAILED:
            return ending, None
        environment, invoker = self.order.prompt.environment, self._invoker("reward")
        started = self._clock.now()
        try:
            async with asyncio.timeout(REWARD_DEADLINE_S) as self._scope:
                return ending, await call_reward(environment, self._episode(ending), invoker)
        except TrajectoryEnded as ended:
            return ended.ending, None
        except TimeoutError:
            detail = f"the reward took longer than {REWARD_DEADLINE_S:g} s"
            return self._requested or Ending(StopReason.TOOL_FAILED, detail, stage="reward"), None
        finally:
            self._scope = None
            self._clock.add_tools(invoker.results, self._clock.now() - started)

    def _episode(self, ending: Ending) -> Episode:
        return Episode(
            task=self.order.prompt.task,
            messages=tuple(self._progress.messages),
            tool_calls=tuple(call for step in self._progress.steps for call in step.tool_calls),
            stop_reason=ending.reason,
            steps=len(self._progress.steps),
        )

    async def _iterate(self) -> None:
        turn = self._turn_of_before() if self._progress.between else await self._generate()
        while True:
            await self._react(turn)
            turn = await self._generate()

    async def _generate(self) -> Turn:
        """Rungs 1 and 2, and the parsing of 3."""
        progress = self._progress
        steps_done = len(progress.steps)
        generation = StepGeneration(
            self._services,
            self.order,
            self._clock,
            progress.buffer,
            self._sessions,
            step_index=steps_done,
            max_new_tokens=self._room.for_step(steps_done),
            previous=progress.steps[-1] if progress.steps else None,
        )
        self._generation = generation
        if self._preempted_early:
            generation.preempt()
            self._preempted_early = False
        await generation.run()
        step, sampled = generation.record(), generation.sampled.arrays()
        turn = self._turn(step, self._text(generation))
        self._take(generation, step, sampled, Message("assistant", turn.text, tool_calls=turn.calls))
        await self._journal.append(
            journal.GENERATION,
            journal.GeneratedEntry(
                step=step,
                forced_ids=list(self.order.prompt.forced_ids),
                token_ids=sampled.token_ids,
                logprobs=sampled.logprobs,
                weight_versions=sampled.version_runs,
                prediction=generation.prediction,
                model=self._services.model,
                prompt_checksum=progress.buffer.prompt_checksum,
                parts=self._clock.parts,
                wall=self._clock.wall,
                message=progress.messages[-1],
            ),
        )
        return turn

    def _text(self, generation: StepGeneration) -> str:
        return turn_text(self._services.tokenizer, self.order.prompt.forced_ids, generation.sampled.token_ids)

    def _take(
        self, generation: StepGeneration, step: StepRecord, sampled: SampledArrays, message: Message
    ) -> None:
        self._generation = None
        self._progress.generated(step, self.order.prompt.forced_ids, sampled, message, generation.prediction)

    def _turn_of_before(self) -> Turn:
        """The last step's, which an earlier process generated."""
        return self._turn(self._progress.steps[-1], self._progress.messages[-1].content)

    def _turn(self, step: StepRecord, text: str) -> Turn:
        """As parsed."""
        parsed = self.order.prompt.parser.parse(text, step_index=step.step_index)
        truncated = step.finish_reason is FinishReason.LENGTH
        return Turn(step.step_index, text, parsed.content, parsed.calls, parsed.errors, truncated)

    async def _react(self, turn: Turn) -> None:
        """Rungs 3 to 5. Raises ``TrajectoryEnded`` at the end of the trajectory."""
        if self._progress.tool_calls > self.order.limits.max_tool_calls:  # then none of the turn's runs
            raise TrajectoryEnded(Ending(StopReason.MAX_TOOL_CALLS))
        spent = self._room.spent_limit()
        invoker = self._invoker(str(turn.step_index))
        try:
            outcome = await self._environment_step(turn, invoker)
        finally:  # also a step that is cut short in its tools keeps what they did
            step = self._progress.called(invoker.records)
            self._services.observer.step_finished(step)
        self._progress.between = False
        self._count_invalid(turn, invoker)
        self._end_if_over(outcome, spent)
        await self._observe(step, outcome)

    async def _environment_step(self, turn: Turn, invoker: RecordingInvoker) -> StepOutcome:
        order = self.order
        if turn.calls:
            names = tuple(call.name for call in turn.calls)
            self._services.link.post(ToolsStarted(order.trajectory_id, turn.step_index, names))
            self._read(0)
        started = self._clock.now()
        try:
            prompt, messages = order.prompt, tuple(self._progress.messages)
            return await call_step(prompt.environment, prompt.task, messages, turn, invoker)
        finally:
            self._clock.add_tools(invoker.results, self._clock.now() - started)

    def _count_invalid(self, turn: Turn, invoker: RecordingInvoker) -> None:
        valid = len(turn.calls) - invoker.rejected
        if valid > 0 or not (turn.errors or invoker.rejected):
            self._progress.invalid_in_a_row = 0
        else:
            self._progress.invalid_in_a_row += 1

    def _end_if_over(self, outcome: StepOutcome, spent: StopReason | None) -> None:
        """The environment's word comes first, then the limits in the order of their severity."""
        progress = self._progress
        counts = len(progress.steps), progress.tool_calls, progress.invalid_in_a_row
        reason = outcome.stop_reason or spent or limit_reached(self.order.limits, *counts)
        if reason is not None:
            raise TrajectoryEnded(Ending(reason))

    async def _observe(self, step: StepRecord, outcome: StepOutcome) -> None:
        tokenizer = self._services.tokenizer
        closed = self._progress.buffer.last_id == tokenizer.end_of_turn_id
        try:
            ids = tokenizer.render_observation(outcome.messages, turn_closed=closed)
        except ConfigError as exc:  # a message that this chat template cannot write
            raise TrajectoryEnded(environment_ending(exc, "environment")) from exc
        if not self._room.takes_observation(len(ids)):
            raise TrajectoryEnded(Ending(StopReason.CONTEXT_OVERFLOW))
        self._progress.observed(ids, outcome.messages)
        entry = journal.ObservedEntry(
            step_index=step.step_index,
            tool_calls=list(step.tool_calls),
            messages=list(outcome.messages),
            token_ids=array("i", ids),
            invalid_in_a_row=self._progress.invalid_in_a_row,
            parts=self._clock.parts,
            wall=self._clock.wall,
            migration=step.migration,
        )
        await self._journal.append(journal.OBSERVATION, entry)
        self._tools.forget()
        outcomes = tuple(call.outcome for call in step.tool_calls)
        event = ToolsFinished(self.order.trajectory_id, step.step_index, len(ids), outcomes)
        self._services.link.post(event)
        self._read(len(ids))

    # ------------------------------------------------------------------------------------- helpers

    def _read(self, appended_tokens: int) -> None:
        progress = self._progress
        self._services.read(
            self.order, progress.steps, progress.messages, len(progress.buffer), appended_tokens
        )

    def _keep_partial_step(self) -> None:
        """A generation that was cut short from outside: what it sampled is valid and stays."""
        generation = self._generation
        if generation is not None and generation.started and generation.sampled.token_ids:
            step, sampled = generation.record(), generation.sampled.arrays()
            self._take(generation, step, sampled, Message("assistant", self._text(generation)))
            self._services.observer.step_finished(step)

    def _invoker(self, scope: str) -> RecordingInvoker:
        return RecordingInvoker(self._tools, self.order.trajectory_id, self.order.attempt, scope)
