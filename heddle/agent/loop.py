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
from heddle.agent.room import TokenRoom
from heddle.agent.segment import SampledArrays
from heddle.agent.sessions import KeptSessions
from heddle.agent.tokens import TokenBuffer
from heddle.control.events import ToolsFinished, ToolsStarted, TrajectoryEnding, TrajectoryFinished
from heddle.errors import ConfigError
from heddle.records import MoveRecord, PredictionRecord, StepRecord
from heddle.types import FinishReason, Message, StopReason, TrajectoryStatus

REWARD_DEADLINE_S = 120.0
"""Longest an environment may take to judge an episode; its own tools have shorter limits."""


class TrajectoryRun:
    """Single use: ``await run()`` once. ``restore`` first, where a journal exists."""

    def __init__(self, services: LoopServices, order: TrajectoryOrder) -> None:
        self._services = services
        self.order = order
        self._clock = TrajectoryClock(services.now)
        self._buffer = TokenBuffer(order.prompt.prompt_ids)
        self._sessions = KeptSessions(order.trajectory_id)
        self._room = TokenRoom(order.limits, order.prompt, self._buffer, services.engine.context_tokens)
        self._messages: list[Message] = list(order.prompt.messages)
        self._steps: list[StepRecord] = []
        self._predictions: list[PredictionRecord] = []
        self._tool_calls = 0
        self._invalid_in_a_row = 0
        self._journal = TrajectoryJournal(services.journal, order.trajectory_id, order.attempt)
        self._tools = CallGuard(services.tools, self._journal, services.engine.max_tool_retries)
        self._pending: StepRecord | None = None
        """A step whose generation is journalled but not its observation."""
        self._generation: StepGeneration | None = None
        self._preempted_early = False
        """The grant was taken back before this coroutine came to ask for it."""
        self._requested: Ending | None = None
        self._scope: asyncio.Timeout | None = None

    # ------------------------------------------------------------------------------- from outside

    @property
    def context_tokens(self) -> int:
        return len(self._buffer)

    @property
    def sampled_tokens(self) -> int:
        return self._buffer.sampled_tokens

    @property
    def steps_done(self) -> int:
        return len(self._steps)

    @property
    def between(self) -> bool:
        """Whether the last step is generated but not yet observed."""
        return self._pending is not None

    def context_ids(self) -> list[int]:
        """Everything that it was prompted with, generated and observed."""
        return self._buffer.context()

    def visit(self, engine: Engine) -> str:
        """It is about to have a prefix there; returns the name under which the engine may keep it."""
        self._sessions.note(engine)
        return self._sessions.session_id

    def note_move(self, step_index: int, move: MoveRecord) -> None:
        """Remember what became of a move that was tried during the tools of this step."""
        self._steps[step_index] = replace(self._steps[step_index], migration=move)

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
        """
        for entry in entries:
            match entry.kind:
                case journal.GENERATION:
                    self._restore_generation(journal.decode_generated(entry.payload))
                case journal.CALL_STARTED:
                    self._tools.restore_started(journal.decode_started(entry.payload))
                case journal.CALL_FINISHED:
                    self._tools.restore_finished(journal.decode_finished(entry.payload))
                case journal.OBSERVATION:
                    self._restore_observation(journal.decode_observed(entry.payload))
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
            buffer=self._buffer,
            messages=tuple(self._messages),
            steps=tuple(self._steps),
            predictions=tuple(self._predictions),
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
            messages=tuple(self._messages),
            tool_calls=tuple(call for step in self._steps for call in step.tool_calls),
            stop_reason=ending.reason,
            steps=len(self._steps),
        )

    async def _iterate(self) -> None:
        if self._pending is not None:
            await self._react(self._steps[-1])
        while True:
            step = await self._generate()
            await self._react(step)

    async def _generate(self) -> StepRecord:
        """Rungs 1 and 2."""
        generation = StepGeneration(
            self._services,
            self.order,
            self._clock,
            self._buffer,
            self._sessions,
            step_index=len(self._steps),
            max_new_tokens=self._room.for_step(len(self._steps)),
            previous=self._steps[-1] if self._steps else None,
        )
        self._generation = generation
        if self._preempted_early:
            generation.preempt()
            self._preempted_early = False
        await generation.run()
        sampled = generation.sampled.arrays()
        self._pending = step = self._take_step(generation, sampled)
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
                prompt_checksum=self._buffer.prompt_checksum,
                parts=self._clock.parts,
                wall=self._clock.wall,
            ),
        )
        return step

    def _take_step(self, generation: StepGeneration, sampled: SampledArrays) -> StepRecord:
        step = generation.record()
        self._generation = None
        self._buffer.append_given(self.order.prompt.forced_ids, step.weight_version)
        self._buffer.append_sampled(*sampled)
        self._steps.append(step)
        if generation.prediction is not None:
            self._predictions.append(generation.prediction)
        self._messages.append(Message("assistant", self._decode_turn(generation.sampled.token_ids)))
        return step

    async def _react(self, step: StepRecord) -> None:
        """Rungs 3 to 5. Raises ``TrajectoryEnded`` at the end of the trajectory."""
        turn, stop = self._parse(step)
        invoker = self._invoker(str(step.step_index))
        try:
            outcome = await self._environment_step(turn, invoker)
        finally:  # also a step that is cut short in its tools keeps what they did
            step = replace(self._steps[-1], tool_calls=tuple(invoker.records))
            self._steps[-1] = step
            self._services.observer.step_finished(step)
        self._pending = None
        self._count_invalid(turn, invoker)
        self._end_if_over(outcome, stop)
        await self._observe(step, outcome)

    def _parse(self, step: StepRecord) -> tuple[Turn, StopReason | None]:
        """The turn as parsed, and the limit of the whole trajectory that is spent with it.

        Raises ``TrajectoryEnded`` where the turn asks for more calls than are left: none of them runs.
        """
        text = self._messages[-1].content
        parsed = self.order.prompt.parser.parse(text, step_index=step.step_index)
        self._messages[-1] = replace(self._messages[-1], tool_calls=parsed.calls)
        self._tool_calls += len(parsed.calls)
        if self._tool_calls > self.order.limits.max_tool_calls:
            raise TrajectoryEnded(Ending(StopReason.MAX_TOOL_CALLS))
        truncated = step.finish_reason is FinishReason.LENGTH
        turn = Turn(step.step_index, text, parsed.content, parsed.calls, parsed.errors, truncated)
        return turn, self._room.spent_limit()

    async def _environment_step(self, turn: Turn, invoker: RecordingInvoker) -> StepOutcome:
        order = self.order
        if turn.calls:
            names = tuple(call.name for call in turn.calls)
            self._services.link.post(ToolsStarted(order.trajectory_id, turn.step_index, names))
            self._services.read(order, self._steps, self._messages, len(self._buffer), 0)
        started = self._clock.now()
        try:
            prompt, messages = order.prompt, tuple(self._messages)
            return await call_step(prompt.environment, prompt.task, messages, turn, invoker)
        finally:
            self._clock.add_tools(invoker.results, self._clock.now() - started)

    def _count_invalid(self, turn: Turn, invoker: RecordingInvoker) -> None:
        valid = len(turn.calls) - invoker.rejected
        if valid > 0 or not (turn.errors or invoker.rejected):
            self._invalid_in_a_row = 0
        else:
            self._invalid_in_a_row += 1

    def _end_if_over(self, outcome: StepOutcome, spent: StopReason | None) -> None:
        """The environment's word comes first, then the limits in the order of their severity."""
        counts = len(self._steps), self._tool_calls, self._invalid_in_a_row
        reason = outcome.stop_reason or spent or limit_reached(self.order.limits, *counts)
        if reason is not None:
            raise TrajectoryEnded(Ending(reason))

    async def _observe(self, step: StepRecord, outcome: StepOutcome) -> None:
        tokenizer = self._services.tokenizer
        closed = self._buffer.last_id == tokenizer.end_of_turn_id
        try:
            ids = tokenizer.render_observation(outcome.messages, turn_closed=closed)
        except ConfigError as exc:  # a message that this chat template cannot write
            raise TrajectoryEnded(environment_ending(exc, "environment")) from exc
        if not self._room.takes_observation(len(ids)):
            raise TrajectoryEnded(Ending(StopReason.CONTEXT_OVERFLOW))
        self._buffer.append_given(ids, step.weight_version)
        self._messages.extend(outcome.messages)
        entry = journal.ObservedEntry(
            step_index=step.step_index,
            tool_calls=list(step.tool_calls),
            messages=list(outcome.messages),
            token_ids=array("i", ids),
            invalid_in_a_row=self._invalid_in_a_row,
            parts=self._clock.parts,
            wall=self._clock.wall,
            migration=step.migration,
        )
        await self._journal.append(journal.OBSERVATION, entry)
        self._tools.forget()
        outcomes = tuple(call.outcome for call in step.tool_calls)
        event = ToolsFinished(self.order.trajectory_id, step.step_index, len(ids), outcomes)
        self._services.link.post(event)
        self._services.read(self.order, self._steps, self._messages, len(self._buffer), len(ids))

    # ------------------------------------------------------------------------------------- helpers

    def _decode_turn(self, token_ids: Sequence[int]) -> str:
        """Forced prefix and sampled text, without the token that ended it."""
        ids = [*self.order.prompt.forced_ids, *token_ids]
        if ids and ids[-1] in self._services.tokenizer.end_ids:
            ids.pop()
        return self._services.tokenizer.decode(ids)

    def _keep_partial_step(self) -> None:
        """A generation that was cut short from outside: what it sampled is valid and stays."""
        generation = self._generation
        if generation is not None and generation.started and generation.sampled.token_ids:
            self._services.observer.step_finished(self._take_step(generation, generation.sampled.arrays()))

    def _invoker(self, scope: str) -> RecordingInvoker:
        return RecordingInvoker(self._tools, self.order.trajectory_id, self.order.attempt, scope)

    def _restore_generation(self, entry: journal.GeneratedEntry) -> None:
        if (entry.model, entry.prompt_checksum) != (self._services.model, self._buffer.prompt_checksum):
            raise ConfigError(
                f"{self.order.trajectory_id} was begun with model {entry.model} and another prompt or model "
                f"would go on with it (now: {self._services.model})"
            )
        step = entry.step
        self._buffer.append_given(entry.forced_ids, step.weight_version)
        self._buffer.append_sampled(entry.token_ids, entry.logprobs, entry.weight_versions)
        self._steps.append(step)
        self._pending = step
        if entry.prediction is not None:
            self._predictions.append(entry.prediction)
        text = self._decode_turn(entry.token_ids)
        calls = self.order.prompt.parser.parse(text, step_index=step.step_index).calls
        self._messages.append(Message("assistant", text, tool_calls=calls))
        self._clock.parts, self._clock.earlier_wall = entry.parts, entry.wall

    def _restore_observation(self, entry: journal.ObservedEntry) -> None:
        step = replace(self._steps[-1], tool_calls=tuple(entry.tool_calls), migration=entry.migration)
        self._steps[-1] = step
        self._pending = None
        self._tools.forget()
        self._tool_calls += len(self._messages[-1].tool_calls)
        self._buffer.append_given(entry.token_ids, step.weight_version)
        self._messages.extend(entry.messages)
        self._invalid_in_a_row = entry.invalid_in_a_row
        self._clock.parts, self._clock.earlier_wall = entry.parts, entry.wall
