"""Which weights a pool serves, remembered over restarts of Heddle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.errors import StoreError
from heddle.validation import in_words


@dataclass(frozen=True, slots=True)
class Weights:
    """What every worker that serves has loaded."""

    version: int
    path: str | None
    """The directory that they were read from; ``None`` where a trainer pushed them, so that nobody else can
    load them."""
    content: str = ""
    """A digest of where they came from: the same version with another content is another thing."""


@cache
def _weights() -> TypeAdapter[Weights]:
    """Made when a file is there to be read."""
    return TypeAdapter(Weights)


class WeightsFile:
    """One small file, always whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Weights | None:
        """What was saved last; ``None`` where nothing was. Raises ``StoreError``."""
        try:
            saved = self._path.read_bytes()
            return _weights().validate_json(saved)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as exc:
            raise StoreError(f"cannot read {self._path}: {in_words(exc)}") from exc

    def save(self, weights: Weights) -> None:
        """Durable when it returns. Raises ``StoreError``."""
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(orjson.dumps(weights))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as exc:
            raise StoreError(f"cannot write {self._path}: {exc}") from exc
