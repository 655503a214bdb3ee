"""Pages cut by heads: what servers of one tensor-parallel size write, those of any other read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.engines.sglang.kv_store.heads import (
    Bytes,
    HeadShare,
    PageLayout,
    PageShape,
    head_share,
    merge,
    replicated_share,
    shard_bytes,
    shard_count,
    split,
)

HEAD_BYTES = 6
TP_SIZES = (1, 2, 4, 8)


def whole_page(kv_heads: int, layers: int = 3, tokens: int = 4) -> Bytes:
    """All heads of a page, with axes (halves, layers, tokens, heads, bytes); every byte is drawn."""
    rng = np.random.default_rng(kv_heads)
    return rng.integers(0, 256, (2, layers, tokens, kv_heads, HEAD_BYTES), dtype=np.uint8)


def heads_of_rank(kv_heads: int, tp_rank: int, tp_size: int) -> slice:
    """The model's heads that SGLang gives a rank: a share each, or one head to several ranks."""
    if tp_size <= kv_heads:
        held = kv_heads // tp_size
        return slice(tp_rank * held, (tp_rank + 1) * held)
    head = tp_rank // (tp_size // kv_heads)
    return slice(head, head + 1)


def rank_page(page: Bytes, heads: slice, layout: PageLayout) -> tuple[Bytes, PageShape]:
    """What SGLang's host pool hands out for one rank: flat, its axes in the order of the layout."""
    order = {
        PageLayout.LAYER_FIRST: (0, 1, 2, 3, 4),
        PageLayout.PAGE_FIRST_DIRECT: (0, 1, 2, 3, 4),
        PageLayout.PAGE_FIRST: (0, 2, 1, 3, 4),
        PageLayout.PAGE_HEAD: (0, 3, 2, 1, 4),
    }[layout]
    part = page[:, :, :, heads]
    _, layers, tokens, held, _ = part.shape
    flat = np.ascontiguousarray(part.transpose(order)).reshape(-1)
    return flat, PageShape(layout, layers, tokens, held, HEAD_BYTES)


def write_all(page: Bytes, kv_heads: int, shards: int, tp_size: int, layout: PageLayout) -> dict[int, bytes]:
    """What the ranks of one server put into the store; each shard must come once."""
    stored: dict[int, bytes] = {}
    for rank in range(tp_size):
        share = head_share(kv_heads, shards, tp_rank=rank, tp_size=tp_size)
        flat, shape = rank_page(page, heads_of_rank(kv_heads, rank, tp_size), layout)
        if share.writes:
            for shard, data in split(flat, shape, share):
                assert shard not in stored
                assert data.nbytes == shard_bytes(shape, share)
                stored[shard] = data.tobytes()
    return stored


def read_all(stored: dict[int, bytes], shape: PageShape, share: HeadShare) -> Bytes:
    """The page of one rank, put together from the store."""
    flat = np.zeros(shape.nbytes, dtype=np.uint8)
    for shard, heads in share.pieces():
        merge(np.frombuffer(stored[shard], dtype=np.uint8), heads, flat, shape)
    return flat


@pytest.mark.parametrize("kv_heads", [8, 32, 4, 2, 1])
@pytest.mark.parametrize("written_by", TP_SIZES)
@pytest.mark.parametrize("read_by", TP_SIZES)
def test_a_page_goes_from_any_size_to_any_other(kv_heads: int, written_by: int, read_by: int) -> None:
    """Byte for byte; grouped-query models with fewer heads than ranks included."""
    page, shards = whole_page(kv_heads), shard_count(kv_heads, largest_tp=8)
    stored = write_all(page, kv_heads, shards, written_by, PageLayout.PAGE_FIRST)
    assert sorted(stored) == list(range(shards))
    for rank in range(read_by):
        expected, shape = rank_page(page, heads_of_rank(kv_heads, rank, read_by), PageLayout.PAGE_HEAD)
        share = head_share(kv_heads, shards, tp_rank=rank, tp_size=read_by)
        np.testing.assert_array_equal(read_all(stored, shape, share), expected)


@given(
    kv_heads=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 40]),
    largest=st.sampled_from(TP_SIZES),
    layouts=st.tuples(st.sampled_from(PageLayout), st.sampled_from(PageLayout)),
    layers=st.integers(1, 4),
    tokens=st.integers(1, 5),
)
def test_every_size_that_the_model_allows_shares_every_page(
    kv_heads: int, largest: int, layouts: tuple[PageLayout, PageLayout], layers: int, tokens: int
) -> None:
    """Whatever the number of heads and the layout of either pool."""
    sizes = [tp for tp in TP_SIZES if tp <= largest and (kv_heads % tp == 0 or tp % kv_heads == 0)]
    page, shards = whole_page(kv_heads, layers, tokens), shard_count(kv_heads, largest)
    stored = [write_all(page, kv_heads, shards, tp, layouts[0]) for tp in sizes]
    assert all(each == stored[0] for each in stored), "a shard depends on who wrote it"
    for tp in sizes:
        for rank in range(tp):
            expected, shape = rank_page(page, heads_of_rank(kv_heads, rank, tp), layouts[1])
            share = head_share(kv_heads, shards, tp_rank=rank, tp_size=tp)
            np.testing.assert_array_equal(read_all(stored[0], shape, share), expected)


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_latent_pages_are_whole_on_every_rank(tp_size: int) -> None:
    """MLA: one rank writes the page, every rank reads all of it."""
    latent = np.random.default_rng(5).integers(0, 256, 3 * 4 * 24, dtype=np.uint8)
    shape = PageShape(PageLayout.LAYER_FIRST, layers=3, tokens=4, heads=1, head_bytes=24, halves=1)
    shares = [replicated_share(rank) for rank in range(tp_size)]
    assert [share.writes for share in shares] == [True] + [False] * (tp_size - 1)
    stored = {shard: data.tobytes() for shard, data in split(latent, shape, shares[0])}
    assert list(stored) == [0]
    for share in shares:
        np.testing.assert_array_equal(read_all(stored, shape, share), latent)


def test_what_cannot_be_shared_is_refused() -> None:
    """A size that cuts through a shard, a page of another size, a layout unknown."""
    with pytest.raises(ValueError, match="8 ranks cannot share 12 KV heads"):
        head_share(12, 4, tp_rank=0, tp_size=8)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        head_share(8, 8, tp_rank=2, tp_size=2)
    with pytest.raises(ValueError, match="at least 1"):
        shard_count(0, 8)
    with pytest.raises(ValueError, match="'page_first_kv_split' is not supported"):
        PageLayout.named("page_first_kv_split")
    shape = PageShape(PageLayout.PAGE_FIRST, layers=1, tokens=2, heads=1, head_bytes=4)
    with pytest.raises(ValueError, match="15 bytes where 16"):
        shape.canonical(np.zeros(15, dtype=np.uint8))
    with pytest.raises(ValueError, match="in one piece"):
        shape.canonical(np.zeros(32, dtype=np.uint8)[::2])
