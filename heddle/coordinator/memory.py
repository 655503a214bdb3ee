"""What a predictor has learned, from one process to the next: a file of the data directory."""

from __future__ import annotations

import asyncio

import orjson
import structlog

from heddle.config import HeddleConfig
from heddle.control.events import PredictorRestored
from heddle.control.ports import LengthPredictor
from heddle.coordinator.broadcast import Pulse
from heddle.coordinator.control_loop import ControlLoop
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError
from heddle.types import JsonWritable

log = structlog.get_logger(__name__)

EVERY_S = 60.0
"""Longest time for which a state that has changed is not written."""
SETTLE_S = 0.5
"""From the end of a batch to its saving: for what ends with it, and for the learning that follows."""
MOST_BYTES = 64 * 1024 * 1024
"""Of a file. Predictors bound what they remember; this keeps a caller's endless names off the disk."""


class PredictorMemory:
    """Written while the predictor learns and at an orderly end; always whole.

    A coordinator that is killed loses what it learned since the latest batch ended, ``EVERY_S`` at most.
    """

    def __init__(self, config: HeddleConfig, predictor: LengthPredictor) -> None:
        name, trained = f"{predictor.name}.json", config.decisions.predictor_models
        self._path = config.data_dir / "predictors" / name
        self._sources = [self._path] if trained is None else [self._path, trained / name]
        self._predictor = predictor
        self._writing = asyncio.Lock()
        self._written = b""

    async def restore(self, control: ControlLoop) -> None:
        """Post what was saved, else what was trained, if there is either.

        What cannot be read costs accuracy, not the start.
        """
        for path in self._sources:
            try:
                saved = await asyncio.to_thread(path.read_text, encoding="utf-8")
                control.post(PredictorRestored(saved))
            except FileNotFoundError:
                continue
            except (OSError, ConfigError, UnicodeDecodeError) as exc:
                log.warning("predictor begins anew", file=str(path), reason=str(exc))
            else:
                return

    async def run(self, batch_finished: Pulse) -> None:
        """Save at a steady pace and after each batch. Runs until cancelled."""
        while True:
            if await batch_finished.wait(EVERY_S):
                await asyncio.sleep(SETTLE_S)
            await uninterrupted(self.save())

    async def save(self) -> None:
        """Replace the file at once or not at all. Nothing is written by a predictor that keeps no state.

        What cannot be written costs accuracy in the next process, nothing in this one.
        """
        async with self._writing:
            state = self._predictor.save()
            if state is None:
                return
            try:
                await asyncio.to_thread(self._write, state)
            except OSError as exc:
                log.warning("what the predictor learned is not saved", file=str(self._path), reason=str(exc))

    def _write(self, state: JsonWritable) -> None:
        content = orjson.dumps(state)
        if content == self._written:
            return
        if len(content) > MOST_BYTES:
            raise OSError(f"it would take {len(content)} bytes, and {MOST_BYTES} are allowed")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(content)
        draft.replace(self._path)
        self._written = content
