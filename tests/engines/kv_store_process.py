"""A process that uses the shared KV store: ``python kv_store_process.py ROLE ROOT BUDGET SEED``.

``churn`` writes and reads named shards at random and ends with an error where a read brings other bytes than
were written under the name; ``stall`` says so in the middle of a write, and then waits to be killed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np

from heddle.engines.sglang.kv_store.files import ShardFiles
from heddle.engines.sglang.kv_store.heads import Bytes

NAMESPACE = "model"
NAMES = 60
ROUNDS = 400
LARGEST = 96 * 1024


def shard(name: int) -> Bytes:
    """What is written under a name: its size and its bytes follow from it."""
    rng = np.random.default_rng(name)
    return rng.integers(0, 256, int(rng.integers(1, LARGEST)), dtype=np.uint8)


def churn(store: ShardFiles, seed: int) -> None:
    rng = random.Random(seed)
    shards = [shard(name) for name in range(NAMES)]
    for _ in range(ROUNDS):
        name = rng.randrange(NAMES)
        if rng.random() < 0.5:
            store.write(str(name), shards[name])
            continue
        got = np.zeros_like(shards[name])
        if store.read(str(name), got) and not np.array_equal(got, shards[name]):
            sys.exit(f"shard {name} came back with other bytes")
    counters = store.counters
    sys.stdout.write(f"{counters.hits} {counters.written} {counters.evicted}\n")


def stall(store: ShardFiles) -> None:
    write = os.pwrite

    def half_then_wait(fd: int, data: memoryview, offset: int) -> int:
        if len(data) <= 8:  # the record of memory in use
            return write(fd, data, offset)
        write(fd, data[: len(data) // 2], offset)
        sys.stdout.write("half\n")
        sys.stdout.flush()
        time.sleep(3600)
        raise AssertionError("nobody killed it")

    os.pwrite = half_then_wait  # type: ignore[assignment]
    store.write("stalled", shard(0))


def main() -> None:
    role, root, budget, seed = sys.argv[1:]
    store = ShardFiles(Path(root), namespace=NAMESPACE, budget_bytes=int(budget))
    if role == "churn":
        churn(store, int(seed))
    else:
        stall(store)


if __name__ == "__main__":
    main()
