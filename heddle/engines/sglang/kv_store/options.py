"""What a server is told about the store, in ``--hicache-storage-backend-extra-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The same for all servers that are to share pages."""

    root: Path
    """A directory in a memory file system."""
    budget_bytes: int
    """Memory that everything under ``root`` may take, whoever wrote it."""
    model: str
    """Names the weights; servers whose weights differ must differ in it."""
    kv_heads: int
    """Of the model, over all ranks. 1 under multi-head latent attention."""
    largest_tp: int
    """Ranks of the largest server."""

    @classmethod
    def parse(cls, config: Mapping[str, object]) -> StoreOptions:
        """Raises ``ValueError`` that names the key; keys of others are left alone."""
        return cls(
            root=Path(_text(config, "root")),
            budget_bytes=_positive(config, "budget_bytes"),
            model=_text(config, "model"),
            kv_heads=_positive(config, "kv_heads"),
            largest_tp=_positive(config, "largest_tp"),
        )


def _text(config: Mapping[str, object], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"KV store: {key} must be a text that is not empty, got {value!r}")
    return value


def _positive(config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"KV store: {key} must be a whole number above 0, got {value!r}")
    return value
