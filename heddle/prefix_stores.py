"""The store of prefixes that the configuration gives SGLang servers."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heddle.config import HeddleConfig
from heddle.engines.memory_files import MemoryDirectory, memory_file_system
from heddle.engines.sglang.prefix_store import (
    PrefixStore,
    StoreKind,
    expose_kv_store,
    kv_heads_of,
    store_arguments,
    store_environment,
)
from heddle.errors import ConfigError

FAMILY = "heddle-prefixes-"
"""Begins the names of directories that are named after a data directory."""


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """What servers are started with because of their store; both empty without one."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def store_flags(config: HeddleConfig) -> StoreFlags:
    """Reads and makes nothing but the model's own description. Raises ``ConfigError``."""
    store = _store(config)
    if store is None:
        return StoreFlags()
    sglang = config.engine.sglang
    inherited = {**os.environ, **sglang.environment}
    return StoreFlags(
        store_arguments(store, on_cpu=sglang.device == "cpu"),
        store_environment(store, sglang_state_dir(config), inherited),
    )


def open_store(config: HeddleConfig) -> MemoryDirectory | None:
    """What servers need of the store before they start; hold on to it for as long as they run.

    Raises ``ConfigError``, also where another coordinator has the directory.
    """
    store = _store(config)
    if store is None or store.kind is not StoreKind.HEDDLE:
        return None
    try:
        expose_kv_store(sglang_state_dir(config))
        named = config.engine.sglang.prefix_store.directory is not None
        return MemoryDirectory(store.directory, family=store.directory.name if named else FAMILY)
    except OSError as exc:
        raise ConfigError(f"engine.sglang.prefix_store: {exc}") from exc


def sglang_state_dir(config: HeddleConfig) -> Path:
    """What SGLang servers keep between starts."""
    return config.data_dir.resolve() / "sglang"


def _store(config: HeddleConfig) -> PrefixStore | None:
    settings, model = config.engine.sglang.prefix_store, Path(config.engine.model)
    kind = StoreKind(settings.kind)
    if kind is StoreKind.NONE:
        return None
    directory = settings.directory or memory_file_system() / f"{FAMILY}{_name(config.data_dir)}"
    return PrefixStore(
        kind=kind,
        model=model.name,
        kv_heads=settings.kv_heads or kv_heads_of(model),
        largest_tp=settings.largest_tp,
        directory=directory,
        budget_bytes=_budget_bytes(settings.budget_gib),
        page_tokens=settings.page_tokens,
        host_gb=settings.host_gb,
        master=settings.master,
    )


def _budget_bytes(gib: float | None) -> int:
    if gib is not None:
        return int(gib * 2**30)
    return shutil.disk_usage(memory_file_system()).free // 2


def _name(data_dir: Path) -> str:
    return hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:16]
