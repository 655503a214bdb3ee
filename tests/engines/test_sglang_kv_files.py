"""The shared store of shards: complete or absent, within its budget, whoever is killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import kv_store_process
import numpy as np
import pytest

from heddle.engines.sglang.kv_store.files import ShardFiles
from heddle.engines.sglang.kv_store.heads import Bytes

SIZE = 8192
ROOMY = 100 * SIZE


def make(root: Path, budget: int = ROOMY, namespace: str = "model") -> ShardFiles:
    return ShardFiles(root, namespace=namespace, budget_bytes=budget)


def shard(seed: int, size: int = SIZE) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def held(store: ShardFiles, names: list[str]) -> list[str]:
    return [name for name in names if name in store]


def start(role: str, root: Path, budget: int, seed: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, kv_store_process.__file__, role, str(root), str(budget), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """To any process, and only under its name, its namespace and its size."""
    assert make(tmp_path).write("a", shard(1))
    reader, got = make(tmp_path), np.zeros(SIZE, dtype=np.uint8)
    assert reader.read("a", got)
    np.testing.assert_array_equal(got, shard(1))
    assert not reader.read("b", got)
    assert not make(tmp_path, namespace="other").read("a", got)
    assert not reader.read("a", np.zeros(SIZE + 1, dtype=np.uint8))
    assert (reader.counters.hits, reader.counters.misses) == (1, 2)


def test_the_first_writer_wins_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    """Two servers that computed the same page write it at the same time."""
    stores = [make(tmp_path), make(tmp_path)]
    together = threading.Barrier(2)

    def write(store: ShardFiles) -> None:
        for name in range(50):
            together.wait()
            assert store.write(str(name), shard(name))

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(store.counters.written for store in stores) == 50
    assert stores[0].used_bytes() == 50 * SIZE
    assert (tmp_path / "usage").read_bytes() == (50 * SIZE).to_bytes(8, "little")


def test_what_went_unread_for_longest_makes_room(tmp_path: Path) -> None:
    """Use keeps a shard; the end of a prefix goes before its beginning."""
    store, names = make(tmp_path, budget=10 * SIZE), [str(number) for number in range(10)]
    for number, name in enumerate(names):
        store.write(name, shard(number))
    store.touch(names)
    store.touch(["9", "absent"])
    store.write("new", shard(10))
    assert held(store, names) == ["0", "1", "2", "3", "4", "5", "6", "9"]
    assert store.used_bytes() <= 10 * SIZE
    assert "new" in store


def test_a_shard_beyond_all_room_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than the budget; or the file system is full, whatever the budget says."""
    store = make(tmp_path, budget=2 * SIZE)
    assert not store.write("large", shard(1, 3 * SIZE))
    store.write("small", shard(2))

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not store.write("another", shard(3))
    assert store.counters.refused == 2
    assert held(store, ["large", "small", "another"]) == ["small"]
    assert store.used_bytes() == SIZE


def test_clearing_forgets_one_namespace(tmp_path: Path) -> None:
    """Another model's pages stay."""
    store, other = make(tmp_path), make(tmp_path, namespace="other")
    store.write("a", shard(1))
    other.write("a", shard(2))
    store.clear()
    assert "a" not in store
    assert "a" in other
    assert store.used_bytes() == SIZE


def test_processes_that_write_read_and_evict_never_see_a_wrong_byte(tmp_path: Path) -> None:
    """Real processes under a budget that holds a fraction of what they write."""
    budget = 10 * kv_store_process.LARGEST
    store = make(tmp_path, budget, kv_store_process.NAMESPACE)
    processes = [start("churn", tmp_path, budget, seed) for seed in range(4)]
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, store.used_bytes())
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    hits, written, evicted = np.sum([[int(n) for n in output.split()] for output in outputs], axis=0)
    assert hits > 0
    assert evicted > 0
    assert written > evicted
    assert 0 < most <= budget
    assert list((tmp_path / "unfinished").iterdir()) == []


def test_a_writer_killed_in_the_middle_leaves_nothing_to_read_and_gives_its_room_back(tmp_path: Path) -> None:
    """While it lives its room is its own; once it is dead, whoever needs room takes it."""
    size = kv_store_process.shard(0).nbytes
    budget = size + 4 * SIZE
    store = make(tmp_path, budget, kv_store_process.NAMESPACE)
    writer = start("stall", tmp_path, budget)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        assert "stalled" not in store
        assert not store.write("large", shard(1, size)), "its room was taken while it wrote"
    finally:
        writer.kill()
        writer.communicate()
    assert "stalled" not in store
    assert store.write("large", shard(1, size))
    assert "stalled" not in store
    assert store.used_bytes() <= budget
    assert list((tmp_path / "unfinished").iterdir()) == []


def test_a_record_of_use_that_is_too_high_is_put_right(tmp_path: Path) -> None:
    """As it is left by a process killed between taking room and giving it back."""
    store = make(tmp_path, budget=4 * SIZE)
    store.write("a", shard(1))
    (tmp_path / "usage").write_bytes((4 * SIZE).to_bytes(8, "little"))
    assert store.write("b", shard(2))
    assert held(store, ["a", "b"]) == ["a", "b"]
    assert (tmp_path / "usage").read_bytes() == (2 * SIZE).to_bytes(8, "little")


def test_a_budget_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget must be positive"):
        make(tmp_path, budget=0)
