"""Estimates by models that read text: a supervised process beside the event loop.

Agent loops hand in what they have reached and go on; the newest state of each trajectory waits, a batch at a
time goes to the process, and what comes back is posted as ``LengthPredicted``: used for the next step where
it is late, and missed by nobody where it never comes. A process that dies or does not answer is started
again after growing pauses, and after ``MOST_FAILURES`` in a row it is given up.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import structlog
from pydantic import ValidationError

from heddle.control.events import LengthPredicted
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError
from heddle.predict.models.base import Example
from heddle.predict.models.wire import ANSWER, MOST_BYTES, READY, Answer, Request, encode
from heddle.types import Prediction, TrajectoryId
from heddle.validation import in_words

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 64
"""Examples in one request."""

MOST_WAITING = 8_192
"""Trajectories whose newest state waits; further ones go without an estimate of this step."""

READY_DEADLINE_S = 300.0
ANSWER_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MOST_FAILURES = 8


class ModelProcess:
    """Implements ``ProgressReader``. ``run`` owns the process; its caller owns ``run``."""

    def __init__(
        self,
        folder: Path,
        models: Sequence[str],
        log_path: Path,
        post: Callable[[LengthPredicted], None],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        answer_deadline_s: float = ANSWER_DEADLINE_S,
        most_failures: int = MOST_FAILURES,
    ) -> None:
        self._command = [sys.executable, "-m", "heddle.predict.models.service", str(folder), *models]
        self._log_path = log_path
        self._post = post
        self._first_pause_s = first_pause_s
        self._answer_deadline_s = answer_deadline_s
        self._most_failures = most_failures
        self._waiting: dict[TrajectoryId, Example] = {}
        self._arrived = asyncio.Event()
        self._answered = 0
        self.failures = 0
        """In a row."""

    def progressed(self, trajectory_id: TrajectoryId, example: Example) -> None:
        """Estimate this soon; an older state of the same trajectory that still waits is dropped."""
        if self.failures >= self._most_failures:
            return
        self._waiting.pop(trajectory_id, None)
        if len(self._waiting) < MOST_WAITING:
            self._waiting[trajectory_id] = example
            self._arrived.set()

    async def run(self) -> None:
        """Until cancelled, or until the process is given up."""
        while self.failures < self._most_failures:
            try:
                await self._serve()
            except (ConfigError, OSError, TimeoutError, ValidationError, asyncio.IncompleteReadError) as exc:
                self.failures += 1
                log.warning(
                    "models failed", reason=in_words(exc) or type(exc).__name__, failures=self.failures
                )
            await asyncio.sleep(min(LONGEST_PAUSE_S, self._first_pause_s * 2 ** (self.failures - 1)))
        self._waiting.clear()
        log.error("models given up", log=str(self._log_path), failures=self.failures)

    async def _serve(self) -> None:
        process = await self._start()
        try:
            async with asyncio.timeout(READY_DEADLINE_S):
                ready = READY.validate_json(await _line(process))
            log.info("models ready", pid=process.pid, models=list(ready.models))
            while True:
                await self._exchange(process)
                self.failures = 0
        finally:
            await uninterrupted(_stop(process))

    async def _start(self) -> Process:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as stderr:
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=stderr, limit=MOST_BYTES
            )

    async def _exchange(self, process: Process) -> None:
        """One batch there and back. Waits for work without a deadline: nobody waits for it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        names = list(self._waiting)[:MOST_AT_ONCE]
        batch = {name: self._waiting.pop(name) for name in names}
        self._answered += 1
        request = Request(self._answered, list(batch.values()))
        assert process.stdin is not None, "the process was started with a pipe"
        async with asyncio.timeout(self._answer_deadline_s):
            process.stdin.write(encode(request))
            await process.stdin.drain()
            answer = ANSWER.validate_json(await _line(process))
        if answer.number != request.number:
            raise ConfigError(f"the models answered request {answer.number}, asked was {request.number}")
        self._tell(batch, answer)

    def _tell(self, batch: Mapping[TrajectoryId, Example], answer: Answer) -> None:
        for model, rows in answer.quantiles.items():
            tokens = np.expm1(np.array(rows)).tolist()
            for (name, example), (low, median, high) in zip(batch.items(), tokens, strict=True):
                prediction = Prediction(median, low, high, example.steps_done, model)
                self._post(LengthPredicted(name, prediction))


async def _line(process: Process) -> bytes:
    """Raises ``ConfigError`` where the process ended instead of answering."""
    assert process.stdout is not None, "the process was started with a pipe"
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise ConfigError("the process of the models ended")
    return line


async def _stop(process: Process) -> None:
    """Close its input, which ends it; kill it where it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
