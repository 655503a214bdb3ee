"""How servers are told to share the prefixes that they computed: HiCache's flags and environment.

A server that computes a prefix writes its pages to the store at once, and one that is asked for a prefix
which it lacks looks there first. With ``heddle`` that is a memory file system of this machine and the
storage class of ``kv_store``, for servers of all parallel degrees; ``mooncake`` is SGLang's own backend for
a store over the network, whose master somebody else runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ValidationError

from heddle.errors import ConfigError
from heddle.validation import in_words

PACKAGE_NAME = "heddle_kv_store"
"""Under which SGLang's processes import ``heddle.engines.sglang.kv_store``."""

PREFETCH_THRESHOLD_TOKENS = 64
"""Shorter finds in the store are computed anew. SGLang's own 256 would leave short trajectories out."""

MOONCAKE_ENVIRONMENT: Mapping[str, str] = {
    "MOONCAKE_PROTOCOL": "tcp",
    "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
    "MC_STORE_MEMCPY": "0",
}
"""Where nothing else is set: TCP needs no special network, and copying inside a process has crashed."""


class StoreKind(StrEnum):
    """Which store servers share."""

    NONE = "none"
    HEDDLE = "heddle"
    MOONCAKE = "mooncake"


@dataclass(frozen=True, slots=True)
class PrefixStore:
    """A store, and what servers must agree on to share it."""

    kind: StoreKind
    model: str
    """Names the weights."""
    kv_heads: int
    """Of the model; 1 under multi-head latent attention."""
    largest_tp: int
    """Ranks of the largest server."""
    directory: Path
    """Of ``heddle``: in a memory file system."""
    budget_bytes: int
    """Of ``heddle``: memory that all pages may take together."""
    page_tokens: int = 64
    """Only whole pages are shared."""
    host_gb: int | None = None
    """Host memory of each rank for prefixes, in front of the store; ``None`` takes SGLang's share."""
    master: str | None = None
    """Of ``mooncake``: host and port of its master."""


class _ModelConfig(BaseModel):
    """What a model's ``config.json`` says of its attention."""

    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    kv_lora_rank: int | None = None
    text_config: _ModelConfig | None = None


def kv_heads_of(model: Path) -> int:
    """The KV heads of a model directory; 1 under multi-head latent attention. Raises ``ConfigError``."""
    path = model / "config.json"
    try:
        config = _ModelConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise ConfigError(f"cannot tell the KV heads of the model from {path}: {in_words(exc)}") from exc
    config = config.text_config or config
    if config.kv_lora_rank:
        return 1
    heads = config.num_key_value_heads or config.num_attention_heads
    if not heads:
        raise ConfigError(f"{path} does not say how many KV heads the model has")
    return heads


def store_arguments(store: PrefixStore, *, on_cpu: bool) -> tuple[str, ...]:
    """What every server's command line gets."""
    if store.kind is StoreKind.NONE:
        return ()
    size = ("--hicache-ratio", "2") if store.host_gb is None else ("--hicache-size", str(store.host_gb))
    return (
        "--enable-hierarchical-cache",
        *("--page-size", str(store.page_tokens)),
        *size,
        *("--hicache-write-policy", "write_through"),  # the others keep a prefix until it is evicted
        *("--hicache-storage-prefetch-policy", "wait_complete"),
        *_memory_arguments(store.kind, on_cpu),
        *("--hicache-storage-backend", "dynamic" if store.kind is StoreKind.HEDDLE else "mooncake"),
        *("--hicache-storage-backend-extra-config", json.dumps(_extra_config(store), sort_keys=True)),
    )


def store_environment(store: PrefixStore, state_dir: Path, inherited: Mapping[str, str]) -> Mapping[str, str]:
    """What every server's environment gets, over ``inherited``.

    Servers find the storage class where ``expose_kv_store`` puts it. Raises ``ConfigError`` for a store that
    lacks a setting.
    """
    if store.kind is StoreKind.HEDDLE:
        paths = [str(_exposed(state_dir)), inherited.get("PYTHONPATH", "")]
        return {"PYTHONPATH": ":".join(path for path in paths if path)}
    if store.kind is StoreKind.MOONCAKE:
        if store.master is None:
            raise ConfigError("a mooncake store needs the address of its master")
        settings = {name: inherited.get(name, value) for name, value in MOONCAKE_ENVIRONMENT.items()}
        return {"MOONCAKE_MASTER": store.master, **settings}
    return {}


def expose_kv_store(state_dir: Path) -> Path:
    """A directory for ``PYTHONPATH`` that holds the storage class and nothing else.

    SGLang often has an environment of its own, which must not see the packages of Heddle's.
    """
    path = _exposed(state_dir)
    link = path / PACKAGE_NAME
    package = Path(__file__).resolve().parent / "kv_store"
    path.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() != package:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(package, target_is_directory=True)
    return path


def _exposed(state_dir: Path) -> Path:
    return state_dir / "sglang-path"


def _memory_arguments(kind: StoreKind, on_cpu: bool) -> tuple[str, ...]:
    """How pages lie in host memory, and who copies them."""
    if on_cpu:
        return "--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"
    if kind is StoreKind.MOONCAKE:  # it cuts pages by heads in no other layout
        return "--hicache-io-backend", "kernel", "--hicache-mem-layout", "page_head"
    return ()


def _extra_config(store: PrefixStore) -> Mapping[str, str | int]:
    if store.kind is StoreKind.MOONCAKE:
        # Its address here would make SGLang ignore the rest of its environment.
        return {"prefetch_threshold": PREFETCH_THRESHOLD_TOKENS, "tp_lcm_size": store.largest_tp}
    return {
        "backend_name": "heddle",
        "module_path": f"{PACKAGE_NAME}.hicache",
        "class_name": "HeddleKvStore",
        "prefetch_threshold": PREFETCH_THRESHOLD_TOKENS,
        "root": str(store.directory),
        "budget_bytes": store.budget_bytes,
        "model": store.model,
        "kv_heads": store.kv_heads,
        "largest_tp": store.largest_tp,
    }
