"""What servers are told about the store that they share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from heddle.engines.sglang.kv_store.options import StoreOptions
from heddle.engines.sglang.prefix_store import (
    PrefixStore,
    StoreKind,
    expose_kv_store,
    kv_heads_of,
    store_arguments,
    store_environment,
)
from heddle.errors import ConfigError

STORE = PrefixStore(
    StoreKind.HEDDLE,
    model="qwen",
    kv_heads=8,
    largest_tp=4,
    directory=Path("/dev/shm/heddle-1"),
    budget_bytes=1 << 30,
)


def value(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_storage_class_understands_what_the_launcher_writes() -> None:
    """One side writes JSON into a command line, the other reads it in another process."""
    arguments = store_arguments(STORE, on_cpu=False)
    config = json.loads(value(arguments, "--hicache-storage-backend-extra-config"))
    assert StoreOptions.parse(config) == StoreOptions(STORE.directory, STORE.budget_bytes, "qwen", 8, 4)
    assert value(arguments, "--hicache-storage-backend") == "dynamic"
    assert value(arguments, "--hicache-write-policy") == "write_through"


def test_mooncake_cuts_pages_by_heads_and_is_configured_by_its_environment(tmp_path: Path) -> None:
    """In the one layout in which it can, for all degrees; the user's own settings stand."""
    store = dataclasses.replace(STORE, kind=StoreKind.MOONCAKE, master="10.0.0.1:50051")
    arguments = store_arguments(store, on_cpu=False)
    assert value(arguments, "--hicache-mem-layout") == "page_head"
    assert json.loads(value(arguments, "--hicache-storage-backend-extra-config"))["tp_lcm_size"] == 4
    environment = store_environment(store, tmp_path, {"MOONCAKE_PROTOCOL": "rdma"})
    assert environment["MOONCAKE_MASTER"] == "10.0.0.1:50051"
    assert environment["MOONCAKE_PROTOCOL"] == "rdma"
    with pytest.raises(ConfigError, match="needs the address of its master"):
        store_environment(dataclasses.replace(store, master=None), tmp_path, {})


def test_without_a_store_nothing_is_said(tmp_path: Path) -> None:
    """No flag, no variable, no directory."""
    store = dataclasses.replace(STORE, kind=StoreKind.NONE)
    assert store_arguments(store, on_cpu=False) == ()
    assert store_environment(store, tmp_path, {}) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_storage_class_is_found_before_what_was_on_the_path(tmp_path: Path) -> None:
    """And a directory of an older installation is brought up to date."""
    stale = tmp_path / "sglang-path" / "heddle_kv_store"
    stale.parent.mkdir()
    stale.symlink_to(tmp_path / "gone")
    environment = store_environment(STORE, tmp_path, {"PYTHONPATH": "/mine"})
    assert not (stale / "hicache.py").exists(), "asking for it makes nothing"
    assert environment == {"PYTHONPATH": f"{expose_kv_store(tmp_path)}:/mine"}
    assert (stale / "hicache.py").is_file()


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, 8),
        ({"num_attention_heads": 32}, 32),
        ({"num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512}, 1),
        ({"text_config": {"num_attention_heads": 16, "num_key_value_heads": 4}}, 4),
    ],
)
def test_the_model_says_how_many_heads_it_has(tmp_path: Path, config: dict[str, object], heads: int) -> None:
    """Grouped-query, multi-head, latent attention, and a language model inside another."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_heads_of(tmp_path) == heads


@pytest.mark.parametrize("content", [None, "{", '{"model_type": "x"}'])
def test_a_model_that_does_not_say_is_named(tmp_path: Path, content: str | None) -> None:
    """No file, no JSON, no heads."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=str(tmp_path / "config.json")):
        kv_heads_of(tmp_path)
