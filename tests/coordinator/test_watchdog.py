"""Nobody waits for ever without a word: owners, holders, and what a batch waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from job_harness import Job, ScriptedEnvironment, call_text, collect

from heddle.agent.ports import Episode, Reward, StepOutcome, ToolInvoker, Turn
from heddle.control.build import PlaneSettings, build_plane
from heddle.control.events import BatchSubmitted, PoolRequested, TrajectorySpec, WorkerReady
from heddle.control.invariants import InvariantViolation
from heddle.coordinator import housekeeping, runner
from heddle.coordinator.watchdog import Watchdog
from heddle.records import FailureKind
from heddle.tools.manager import ToolGauges
from heddle.tools.ports import ToolBackend
from heddle.types import BatchId, GroupId, Json, Message, StopReason, TrajectoryId, WorkerId

T = TrajectoryId("b-g0-t0")


@dataclass
class Owners:
    """Owned and generating, unless told otherwise."""

    ownerless: set[TrajectoryId] = field(default_factory=set)
    idle: set[TrajectoryId] = field(default_factory=set)

    def has_owner(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id not in self.ownerless

    def uses_its_slot(self, trajectory_id: TrajectoryId) -> bool:
        return trajectory_id not in self.idle


def watchdog(owners: Owners, gauges: ToolGauges) -> Watchdog:
    """Over one trajectory that generates on one worker."""
    plane = build_plane(PlaneSettings(pool="1"))
    plane.handle(PoolRequested(1), 0.0)
    plane.handle(WorkerReady(WorkerId("w0"), 1, None), 0.0)
    spec = TrajectorySpec(T, GroupId("b-g0"), 4, 100, context_tokens=4)
    plane.handle(BatchSubmitted(BatchId("b"), (spec,)), 0.0)
    return Watchdog(plane, owners, lambda: gauges)


@pytest.mark.parametrize(
    ("owners", "gauges", "words"),
    [
        (Owners(ownerless={T}), ToolGauges(0, 0, {}), "b-g0-t0 is generating and nobody runs it"),
        (Owners(idle={T}), ToolGauges(0, 0, {}), "b-g0-t0 holds a slot of w0 and does not generate"),
        (Owners(), ToolGauges(0, 3, {}), "a permit is lost"),
    ],
)
def test_what_nobody_takes_care_of_is_named_at_the_second_look(
    owners: Owners, gauges: ToolGauges, words: str
) -> None:
    """Once may be the moment between two steps."""
    dog = watchdog(owners, gauges)
    dog.look()
    with pytest.raises(InvariantViolation, match=words):
        dog.look()


def test_what_is_cared_for_in_between_is_no_finding() -> None:
    """Suspicions do not add up."""
    owners = Owners(ownerless={T})
    dog = watchdog(owners, ToolGauges(1, 3, {}))
    dog.look()
    owners.ownerless.clear()
    dog.look()
    owners.ownerless.add(T)
    dog.look()


async def test_a_trajectory_whose_task_vanishes_ends_the_coordinator_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started anew, it goes on and finishes."""
    monkeypatch.setattr(housekeeping, "TICK_S", 0.01)
    monkeypatch.setattr(housekeeping, "TICKS_PER_CHECK", 1)
    job = Job(turn=lambda step: call_text("slow") if step == 0 else "The end.")

    async def lose_the_task() -> None:
        async with job.coordinator(tmp_path) as coordinator:
            await coordinator.submit(job.batch())
            while (await coordinator.batch("b")).by_phase != {"in_tool": 1}:
                await asyncio.sleep(0)
            [owner] = [task for task in asyncio.all_tasks() if task.get_name() == T]
            owner.cancel()
            await asyncio.sleep(60.0)

    with pytest.raises(BaseExceptionGroup) as raised:
        await lose_the_task()
    [violation] = raised.value.exceptions
    assert "b-g0-t0 is in_tool and nobody runs it" in str(violation)

    async with job.coordinator(tmp_path) as coordinator:
        [record] = await collect(coordinator, "b")
    assert record.stop_reason is StopReason.COMPLETED


async def test_a_batch_whose_loops_are_started_slowly_is_cared_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy loop starting them takes longer than the watchdog's patience: it looks in every turn here."""
    monkeypatch.setattr(housekeeping, "TICK_S", 0.0)
    monkeypatch.setattr(housekeeping, "TICKS_PER_CHECK", 1)
    monkeypatch.setattr(runner, "TASKS_PER_SLICE", 1)
    job = Job()

    records = await job.run_many(tmp_path, samples=50)

    assert len({record.trajectory_id for record in records}) == 50


class CancellingEnvironment(ScriptedEnvironment):
    """Awaits something that was cancelled, where the task says so: its own bug, and nobody's order."""

    @property
    def name(self) -> str:
        return "cancelling"

    def backends(self) -> Sequence[ToolBackend]:
        return ()

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        if task.get("in") == "step":
            raise asyncio.CancelledError
        return await super().step(task, messages, turn, tools)

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        if episode.task.get("in") == "reward":
            raise asyncio.CancelledError
        return await super().reward(episode, tools)


@pytest.mark.parametrize("where", ["step", "reward"])
async def test_a_cancellation_that_nobody_asked_for_is_the_environment_s_fault(
    where: str, tmp_path: Path
) -> None:
    """It would end the task without a word, and the batch would never be over."""
    job = Job(environments={"cancelling": "test_watchdog:CancellingEnvironment"})
    job.request = {"environment": "cancelling", "prompts": [{"task": {"in": where}}, {"task": {}}]}
    failed, sound = await job.run(tmp_path)
    assert (failed.stop_reason, sound.stop_reason) == (StopReason.TOOL_FAILED, StopReason.COMPLETED)
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.DATA
    assert "cancelled from within" in failed.failure.message


async def test_a_batch_says_what_it_waits_for(tmp_path: Path) -> None:
    """Groups of open trajectories, each with one sentence; nothing once it is over."""
    job = Job(turn=lambda step: call_text("slow") if step == 0 else "The end.", pool="1", slots=1)
    async with job.coordinator(tmp_path) as coordinator:
        await coordinator.pause()
        await coordinator.submit(job.batch(samples_per_prompt=3))
        paused = await coordinator.explain_batch("b")
        assert (paused.state, paused.open) == ("running", 3)
        [group] = paused.waiting
        assert (group.phase, group.trajectories) == ("queued", 3)
        assert ("dispatch is paused" in group.reason) or ("no worker is ready" in group.reason)

        await coordinator.resume()
        while (await coordinator.batch("b")).by_phase != {"in_tool": 3}:
            await asyncio.sleep(0)
        working = await coordinator.explain_batch("b")
        assert [(group.phase, group.trajectories) for group in working.waiting] == [("in_tool", 3)]
        assert "runs slow" in working.waiting[0].reason
        assert working.summary.startswith("3 open: 3 in tool; longest b-g0-t")

        await collect(coordinator, "b")
        over = await coordinator.explain_batch("b")
    assert (over.state, over.open, over.waiting) == ("finished", 0, [])
