"""The process of the models: its estimates arrive, its absence costs nothing but them."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from heddle.control.events import LengthPredicted
from heddle.coordinator.estimates import ModelProcess
from heddle.predict.models.base import Example, Lesson
from heddle.types import TrajectoryId

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a trained text model."""
    pytest.importorskip("sklearn", reason="the extra 'learn' is not installed")
    from heddle.predict.models.text import Text

    rng = random.Random(0)
    long = [rng.random() < 0.5 for _ in range(60)]
    examples = [Example(1, 1, 1, 1, text="endless toil" if x else "brief note") for x in long]
    model = Text()
    model.fit(Lesson(examples, np.log1p([4000 if x else 40 for x in long]), np.ones(60)))
    path = tmp_path_factory.mktemp("models")
    model.save(path)
    return path


class Inbox:
    """Collects what is posted."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[LengthPredicted] = asyncio.Queue()

    async def next(self) -> LengthPredicted:
        async with asyncio.timeout(DEADLINE_S):
            return await self.events.get()


@asynccontextmanager
async def running(models: ModelProcess) -> AsyncIterator[asyncio.Task[None]]:
    """Started, and stopped at the end."""
    task = asyncio.ensure_future(models.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def example(text: str, steps_done: int = 1) -> Example:
    return Example(steps_done, 1, 1, 1, text=text)


async def test_estimates_arrive_in_batches_and_the_newest_state_counts(folder: Path, tmp_path: Path) -> None:
    """What waits while the process starts is asked together; of one trajectory the newest state only."""
    inbox = Inbox()
    models = ModelProcess(folder, ["text"], tmp_path / "log", inbox.events.put_nowait)
    models.progressed(TrajectoryId("a"), example("brief note", 1))
    models.progressed(TrajectoryId("b"), example("brief note", 1))
    models.progressed(TrajectoryId("a"), example("endless toil", 2))
    async with running(models):
        first, second = await inbox.next(), await inbox.next()
    assert [first.trajectory_id, second.trajectory_id] == ["b", "a"]
    assert (second.prediction.made_after_step, second.prediction.model) == (2, "text")
    assert second.prediction.remaining_tokens > 10 * first.prediction.remaining_tokens
    assert inbox.events.empty()


async def test_a_killed_process_is_started_again(folder: Path, tmp_path: Path) -> None:
    """What is asked afterwards is answered."""
    inbox = Inbox()
    models = ModelProcess(folder, ["text"], tmp_path / "log", inbox.events.put_nowait, first_pause_s=0.01)
    async with running(models):
        models.progressed(TrajectoryId("a"), example("brief note"))
        await inbox.next()
        (process,) = [p for p in psutil.Process().children() if str(folder) in p.cmdline()]
        process.send_signal(signal.SIGKILL)
        answered = None
        async with asyncio.timeout(DEADLINE_S):
            while answered is None:
                models.progressed(TrajectoryId("b"), example("brief note"))
                try:
                    async with asyncio.timeout(1.0):
                        answered = await inbox.events.get()
                except TimeoutError:
                    continue
    assert answered.trajectory_id == "b"
    assert not process.is_running()


async def test_models_that_never_come_up_are_given_up(tmp_path: Path) -> None:
    """Nothing is raised, nothing waits, and handing in work stays harmless."""

    def refuse(event: LengthPredicted) -> None:
        raise AssertionError(event)

    log = tmp_path / "log"
    models = ModelProcess(tmp_path, ["no such"], log, refuse, first_pause_s=0.0, most_failures=2)
    models.progressed(TrajectoryId("a"), example("brief note"))
    async with asyncio.timeout(DEADLINE_S):
        await models.run()
    assert models.failures == 2
    models.progressed(TrajectoryId("b"), example("brief note"))


async def test_no_process_is_left_behind(folder: Path, tmp_path: Path) -> None:
    """Whatever way its owner ends."""
    inbox = Inbox()
    models = ModelProcess(folder, ["text"], tmp_path / "log", inbox.events.put_nowait)
    async with running(models):
        models.progressed(TrajectoryId("a"), example("brief note"))
        await inbox.next()
    assert [p for p in psutil.Process().children() if str(folder) in p.cmdline()] == []
