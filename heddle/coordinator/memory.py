"""What a predictor has learned, from one process to the next: a file of the data directory."""

from __future__ import annotations

import asyncio

import orjson
import structlog

from heddle.config import HeddleConfig
from heddle.control.events import PredictorRestored
from heddle.control.ports import LengthPredictor
from heddle.coordinator.control_loop import ControlLoop
from heddle.errors import ConfigError

log = structlog.get_logger(__name__)


class PredictorMemory:
    """Written once, at an orderly end; a coordinator that is killed loses what it learned since its start."""

    def __init__(self, config: HeddleConfig, predictor: LengthPredictor) -> None:
        name, trained = f"{predictor.name}.json", config.decisions.predictor_models
        self._path = config.data_dir / "predictors" / name
        self._sources = [self._path] if trained is None else [self._path, trained / name]
        self._predictor = predictor

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
            except (ConfigError, UnicodeDecodeError) as exc:
                log.warning("predictor begins anew", file=str(path), reason=str(exc))
            else:
                return

    async def save(self) -> None:
        """Replace the file at once or not at all. Nothing is written by a predictor that keeps no state."""
        state = self._predictor.save()
        if state is not None:
            await asyncio.to_thread(self._write, orjson.dumps(state))

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(content)
        draft.replace(self._path)
