"""Runs in SGLang's own environment: ``python hicache_glue.py ROOT`` ends with 0 where everything holds.

Pages of torch tensors through the storage class as SGLang makes it: between servers of 1, 2, 4 and 8 ranks,
in every layout, for keys and values by heads and for latent vectors; and what the class imports.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass

import torch
from heddle_kv_store.hicache import HeddleKvStore
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

KV_HEADS, LAYERS, TOKENS, DIM, LATENT = 8, 3, 4, 16, 40
SIZES = (1, 2, 4, 8)
AXES = {
    "layer_first": (0, 1, 2, 3, 4),
    "page_first": (0, 2, 1, 3, 4),
    "page_first_direct": (0, 1, 2, 3, 4),
    "page_head": (0, 3, 2, 1, 4),
}


@dataclass
class Pool:
    """What SGLang's host pool says of itself."""

    layout: str
    head_num: int
    dtype: torch.dtype = torch.bfloat16
    page_size: int = TOKENS
    layer_num: int = LAYERS
    head_dim: int = DIM

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * LAYERS * TOKENS * self.head_num * DIM, dtype=self.dtype)


@dataclass
class LatentPool:
    """The same under multi-head latent attention."""

    layout: str
    dtype: torch.dtype = torch.float16
    page_size: int = TOKENS
    layer_num: int = LAYERS
    kv_cache_dim: int = LATENT

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(LAYERS * TOKENS * LATENT, dtype=self.dtype)


def store(root: str, rank: int, size: int, pool: Pool | LatentPool, model: str) -> HeddleKvStore:
    latent = isinstance(pool, LatentPool)
    made = HeddleKvStore(
        HiCacheStorageConfig(
            tp_rank=rank,
            tp_size=size,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=latent,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name=model,
            extra_config={
                "root": root,
                "budget_bytes": 1 << 26,
                "model": model,
                "kv_heads": 1 if latent else KV_HEADS,
                "largest_tp": 8,
            },
        ),
        {},
    )
    made.register_mem_pool_host(pool)
    return made


def page(seed: int, rank: int, size: int, layout: str) -> torch.Tensor:
    whole = torch.randn(2, LAYERS, TOKENS, KV_HEADS, DIM, generator=torch.Generator().manual_seed(seed))
    held = KV_HEADS // size
    part = whole[:, :, :, rank * held : (rank + 1) * held].to(torch.bfloat16)
    return part.permute(AXES[layout]).contiguous().flatten()


def check_heads(root: str, written_by: int, layout: str) -> None:
    model, keys = f"{written_by}-{layout}", ["aa", "bb", "cc"]
    for rank in range(written_by):
        writer = store(root, rank, written_by, Pool(layout, KV_HEADS // written_by), model)
        assert writer.batch_set(keys[:2], [page(seed, rank, written_by, layout) for seed in range(2)])
    for read_by in SIZES:
        for rank in range(read_by):
            pool = Pool("page_first", KV_HEADS // read_by)
            reader = store(root, rank, read_by, pool, model)
            assert reader.batch_exists(keys) == 2
            found = reader.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
            assert found[2] is None
            for seed in range(2):
                got = found[seed]
                assert got is not None
                assert torch.equal(got, page(seed, rank, read_by, "page_first"))


def check_latent(root: str) -> None:
    content = torch.randn(LAYERS * TOKENS * LATENT).to(torch.float16)
    assert store(root, 0, 4, LatentPool("layer_first"), "mla").set("aa", content)
    for size in SIZES:
        for rank in range(size):
            pool = LatentPool("layer_first")
            got = store(root, rank, size, pool, "mla").get("aa", pool.get_dummy_flat_data_page())
            assert got is not None
            assert torch.equal(got, content)


def main() -> None:
    root = sys.argv[1]
    for written_by in SIZES:
        for layout in AXES:
            check_heads(root, written_by, layout)
    check_latent(root)
    assert importlib.util.find_spec("heddle") is None, "SGLang's environment sees all of Heddle"
    ours = {name for name in sys.modules if name.partition(".")[0].startswith("heddle")}
    sys.stdout.write(json.dumps(sorted(ours)))


if __name__ == "__main__":
    main()
