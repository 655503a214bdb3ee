"""A tokenizer's raw material, and what a token weighs, read from the metadata of a GGUF file.

The reader of the ``gguf`` package walks through every vocabulary entry of the file, which takes seconds.
So what matters is kept beside the model, in ``<model>.vocabulary.json``, valid for that file's size and
modification time only. Where the directory cannot be written, every start pays for the walk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.errors import ConfigError

_BYTES_PER_NUMBER = 2

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Token types of the GGUF format; all others are written in the byte alphabet."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Byte-level BPE as a GGUF file describes it; ``tokens`` and ``token_types`` are indexed by id."""

    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    """Pairs joined by one space, the strongest first."""
    pre: str
    """Name of the rule that splits text before merging."""
    bos_id: int | None
    eos_id: int
    chat_template: str | None
    kv_bytes_per_token: int | None
    """What one token of context takes in an engine's cache at 16 bits; ``None`` where the file lacks it."""


@dataclass(frozen=True, slots=True)
class _Cached:
    size: int
    mtime_ns: int
    vocabulary: GgufVocabulary


_CACHED: TypeAdapter[_Cached] = TypeAdapter(_Cached)


def load_gguf_vocabulary(path: Path) -> GgufVocabulary:
    """Read ``path``, or what an earlier call kept of it. Raises ``ConfigError``."""
    try:
        stat = path.stat()
    except OSError as exc:
        raise ConfigError(f"cannot read model {path}: {exc}") from exc
    beside = path.with_name(path.name + ".vocabulary.json")
    cached = _read_cached(beside)
    if cached and (cached.size, cached.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
        return cached.vocabulary
    vocabulary = _read_gguf(path)
    _write_cached(beside, _Cached(stat.st_size, stat.st_mtime_ns, vocabulary))
    return vocabulary


def _read_cached(path: Path) -> _Cached | None:
    try:
        return _CACHED.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write_cached(path: Path, cached: _Cached) -> None:
    """Replace the file in one step, so that another process never reads half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        partial.write_bytes(orjson.dumps(asdict(cached)))
        partial.replace(path)


def _read_gguf(path: Path) -> GgufVocabulary:
    try:
        from gguf import GGUFReader
    except ImportError as exc:
        message = "reading a GGUF file needs the package gguf: pip install 'heddle[embedded]'"
        raise ConfigError(message) from exc
    try:
        fields = GGUFReader(path).fields
    except (OSError, ValueError, IndexError, KeyError) as exc:
        raise ConfigError(f"{path} is no readable GGUF file: {exc}") from exc

    def value(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    model = value("tokenizer.ggml.model")
    if model != "gpt2":
        raise ConfigError(
            f"{path} has a {model!r} vocabulary; only byte-level BPE ('gpt2') is supported: "
            "choose another model"
        )
    return GgufVocabulary(
        tokens=value("tokenizer.ggml.tokens", []),
        token_types=value("tokenizer.ggml.token_type", []),
        merges=value("tokenizer.ggml.merges", []),
        pre=value("tokenizer.ggml.pre", "default"),
        bos_id=value("tokenizer.ggml.bos_token_id"),
        eos_id=value("tokenizer.ggml.eos_token_id", 0),
        chat_template=value("tokenizer.chat_template"),
        kv_bytes_per_token=_kv_bytes_per_token(value),
    )


def _kv_bytes_per_token(value: Callable[[str], Any]) -> int | None:
    """Keys and values of all layers. Heads may differ from layer to layer."""
    family = value("general.architecture")
    layers, width, heads, kv_heads = (
        value(f"{family}.{name}")
        for name in ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
    )
    if not (isinstance(layers, int) and isinstance(width, int) and isinstance(heads, int) and kv_heads):
        return None
    total_heads = sum(kv_heads) if isinstance(kv_heads, list) else layers * kv_heads
    key = value(f"{family}.attention.key_length") or width // heads
    values = value(f"{family}.attention.value_length") or width // heads
    return int(total_heads * (key + values) * _BYTES_PER_NUMBER)
