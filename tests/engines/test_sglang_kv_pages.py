"""Pages of whole servers through the store on disk, and what may not meet there."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heddle.engines.sglang.kv_store.heads import Bytes, PageLayout, PageShape
from heddle.engines.sglang.kv_store.options import StoreOptions
from heddle.engines.sglang.kv_store.pages import PageStore
from heddle.engines.sglang.prefix_store import expose_kv_store

KV_HEADS = 8
LAYERS, TOKENS, HEAD_BYTES = 3, 4, 16
KEYS = [f"{number:064x}" for number in range(6)]


def options(root: Path, **changes: object) -> StoreOptions:
    made = StoreOptions(root, budget_bytes=1 << 24, model="m", kv_heads=KV_HEADS, largest_tp=8)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def shape(tp_size: int, tokens: int = TOKENS) -> PageShape:
    heads = KV_HEADS // tp_size
    return PageShape(PageLayout.LAYER_FIRST, LAYERS, tokens, heads, HEAD_BYTES)


def rank(of: StoreOptions, tp_rank: int, tp_size: int, **changes: object) -> PageStore:
    settings = {"number_format": "bfloat16", "latent": False, "stage": 0, "stages": 1, **changes}
    made = settings.pop("shape", shape(tp_size))
    return PageStore(of, made, tp_rank=tp_rank, tp_size=tp_size, **settings)  # type: ignore[arg-type]


def page(key: str, tp_rank: int, tp_size: int) -> Bytes:
    """What the rank computes for this page."""
    rng = np.random.default_rng(int(key, 16))
    whole = rng.integers(0, 256, (2, LAYERS, TOKENS, KV_HEADS, HEAD_BYTES), dtype=np.uint8)
    held = KV_HEADS // tp_size
    return np.ascontiguousarray(whole[:, :, :, tp_rank * held : (tp_rank + 1) * held]).reshape(-1)


@pytest.mark.parametrize("written_by", [1, 2, 4, 8])
@pytest.mark.parametrize("read_by", [1, 2, 4, 8])
def test_servers_of_any_two_sizes_share_pages(tmp_path: Path, written_by: int, read_by: int) -> None:
    """Every rank finds the pages, and gets what it would have computed."""
    for number in range(written_by):
        writer = rank(options(tmp_path), number, written_by)
        assert all(writer.put(key, page(key, number, written_by)) for key in KEYS[:4])
    for number in range(read_by):
        reader = rank(options(tmp_path), number, read_by)
        assert reader.leading(KEYS) == 4
        for key in KEYS[:4]:
            got = np.zeros(shape(read_by).nbytes, dtype=np.uint8)
            assert reader.get(key, got)
            np.testing.assert_array_equal(got, page(key, number, read_by))
        assert not reader.get(KEYS[4], np.zeros(shape(read_by).nbytes, dtype=np.uint8))


def test_a_page_that_lacks_one_ranks_part_ends_the_prefix(tmp_path: Path) -> None:
    """One of two ranks was killed before it wrote: a single large rank must not see the page."""
    first, second = (rank(options(tmp_path), number, 2) for number in range(2))
    whole = rank(options(tmp_path), 0, 1)
    for key in KEYS[:3]:
        first.put(key, page(key, 0, 2))
    second.put(KEYS[0], page(KEYS[0], 1, 2))
    second.put(KEYS[2], page(KEYS[2], 1, 2))
    assert whole.leading(KEYS) == 1
    assert not whole.get(KEYS[1], np.zeros(shape(1).nbytes, dtype=np.uint8))


def test_pages_that_differ_in_anything_but_the_cut_never_meet(tmp_path: Path) -> None:
    """Model, number format, page size, pipeline stage, cut."""
    same = options(tmp_path)
    rank(same, 0, 1).put(KEYS[0], page(KEYS[0], 0, 1))
    assert rank(same, 0, 1).leading(KEYS) == 1
    others = [
        rank(options(tmp_path, model="m2"), 0, 1),
        rank(options(tmp_path, largest_tp=4), 0, 1),
        rank(same, 0, 1, number_format="float8_e4m3fn"),
        rank(same, 0, 1, stage=1, stages=2),
        rank(same, 0, 1, shape=shape(1, tokens=2 * TOKENS)),
    ]
    assert [other.leading(KEYS) for other in others] == [0] * len(others)


def test_latent_pages_are_written_once_and_read_by_all(tmp_path: Path) -> None:
    """MLA, between servers of 1 and 4 ranks."""
    latent = PageShape(PageLayout.PAGE_FIRST, LAYERS, TOKENS, heads=1, head_bytes=24, halves=1)
    of = options(tmp_path, kv_heads=1)
    content = np.random.default_rng(3).integers(0, 256, latent.nbytes, dtype=np.uint8)
    writers = [rank(of, number, 4, shape=latent, latent=True) for number in range(4)]
    assert writers[1].put(KEYS[0], content)
    assert writers[0].leading(KEYS) == 0, "only the first rank writes"
    assert writers[0].put(KEYS[0], content)
    for reader in (*writers, rank(of, 0, 1, shape=latent, latent=True)):
        got = np.zeros(latent.nbytes, dtype=np.uint8)
        assert reader.get(KEYS[0], got)
        np.testing.assert_array_equal(got, content)


def test_a_wrong_number_of_heads_is_noticed(tmp_path: Path) -> None:
    """It would cut through the middle of heads."""
    with pytest.raises(ValueError, match="rank 0 of 2 has 4 KV heads, of 16 it should have 8"):
        rank(options(tmp_path, kv_heads=16), 0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"root": ""}, "root must be a text that is not empty, got ''"),
        ({"budget_bytes": 0}, "budget_bytes must be a whole number above 0, got 0"),
        ({"kv_heads": True}, "kv_heads must be a whole number above 0, got True"),
        ({"largest_tp": "8"}, "largest_tp must be a whole number above 0, got '8'"),
        ({"model": None}, "model must be a text that is not empty, got None"),
    ],
)
def test_bad_options_name_their_key(change: dict[str, object], message: str) -> None:
    """As they come from a command line that somebody edited."""
    config = {"root": "/dev/shm/x", "budget_bytes": 1, "model": "m", "kv_heads": 8, "largest_tp": 8}
    assert StoreOptions.parse(config | {"prefetch_threshold": 64}).kv_heads == 8
    with pytest.raises(ValueError, match=f"KV store: {message}"):
        StoreOptions.parse(config | change)


def test_a_scheduler_process_imports_the_store_and_nothing_else_of_heddle(tmp_path: Path) -> None:
    """From a directory that holds this one package, as SGLang's own environment finds it."""
    path = expose_kv_store(tmp_path)
    assert [entry.name for entry in path.iterdir()] == ["heddle_kv_store"]
    program = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); "
        "import heddle_kv_store.pages; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    foreign = set(run.stdout.split()) - set(sys.stdlib_module_names) - {"_distutils_hack"}
    assert foreign == {"heddle_kv_store", "numpy"}
