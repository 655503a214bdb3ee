"""Pages of KV cache, cut by heads: what one rank holds, and which pieces of the whole page that is.

A page is the keys and values of some tokens in every layer. Under tensor parallelism each rank holds a range
of the KV heads, so a page that one server keeps whole another keeps in parts. Here the whole page is cut
into shards of equally many heads, as many as the largest server has ranks (or heads, where those are fewer).
Every rank of every server then holds a whole number of shards, and a shard has the same bytes whoever wrote
it.

Two exceptions: where there are more ranks than KV heads, several ranks hold the same head and the first of
them writes it; and under multi-head latent attention (MLA) a page has no heads, so that every rank holds
all of it and rank 0 writes it.

Pure, and blind to number formats: a head's numbers are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class PageLayout(StrEnum):
    """How a host pool keeps its pages, in SGLang's words (``--hicache-mem-layout``)."""

    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"
    PAGE_HEAD = "page_head"

    @classmethod
    def named(cls, name: str) -> PageLayout:
        """The layout of this name. Raises ``ValueError`` for one that pages cannot be cut in."""
        try:
            return cls(name)
        except ValueError:
            raise ValueError(
                f"memory layout {name!r} is not supported; use one of {', '.join(cls)}"
            ) from None


_AXES: Mapping[PageLayout, str] = {
    PageLayout.LAYER_FIRST: "klth",
    PageLayout.PAGE_FIRST: "ktlh",
    PageLayout.PAGE_FIRST_DIRECT: "klth",
    PageLayout.PAGE_HEAD: "khtl",
}
"""The axes of one page, outermost first: keys and values, layers, tokens, heads. A head's bytes come last."""

_STORED_AXES = "ktlh"
"""The order inside a shard: that of SGLang's default layout."""


@dataclass(frozen=True, slots=True)
class PageShape:
    """One rank's page. ``head_bytes`` is what one head of one token has in one layer, keys or values."""

    layout: PageLayout
    layers: int
    tokens: int
    heads: int
    """KV heads of this rank; 1 under MLA, whose latent vector counts as the one head."""
    head_bytes: int
    halves: int = 2
    """Keys and values; 1 under MLA, which keeps a single latent vector."""

    @property
    def nbytes(self) -> int:
        return self.halves * self.layers * self.tokens * self.heads * self.head_bytes

    def canonical(self, page: Bytes) -> Bytes:
        """A view of a flat page with the axes (halves, tokens, layers, heads, bytes); nothing is copied.

        Writing to the view writes to the page. Raises ``ValueError`` where the size differs.
        """
        if page.size != self.nbytes or not page.flags.c_contiguous:
            raise ValueError(f"a page of {page.size} bytes where {self.nbytes} in one piece were expected")
        size = {"k": self.halves, "l": self.layers, "t": self.tokens, "h": self.heads}
        axes = _AXES[self.layout]
        shaped = page.reshape(*(size[axis] for axis in axes), self.head_bytes)
        order = [axes.index(axis) for axis in _STORED_AXES]
        return shaped.transpose(*order, len(axes))


@dataclass(frozen=True, slots=True)
class HeadShare:
    """What one rank has to do with the shards of a page."""

    shards: range
    """Indices of those it holds; adjacent, in the order of its heads."""
    heads_per_shard: int
    writes: bool
    """False where another rank of the same server holds the same and writes it."""

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """Each shard's index, and the rank's own heads that are in it."""
        for position, shard in enumerate(self.shards):
            first = position * self.heads_per_shard
            yield shard, slice(first, first + self.heads_per_shard)


def shard_count(kv_heads: int, largest_tp: int) -> int:
    """Into how many shards pages are cut so that servers of up to ``largest_tp`` ranks can share them."""
    if kv_heads < 1 or largest_tp < 1:
        raise ValueError(f"{kv_heads} KV heads and {largest_tp} ranks: both must be at least 1")
    return math.gcd(kv_heads, largest_tp)


def head_share(kv_heads: int, shards: int, *, tp_rank: int, tp_size: int) -> HeadShare:
    """The share of one rank; ``kv_heads`` are those of the model.

    Raises ``ValueError`` where the rank's heads are not a whole number of shards.
    """
    if kv_heads % shards or not 0 <= tp_rank < tp_size:
        raise ValueError(f"{kv_heads} heads in {shards} shards, rank {tp_rank} of {tp_size}: impossible")
    per_shard = kv_heads // shards
    if shards % tp_size == 0:
        held = shards // tp_size
        return HeadShare(range(tp_rank * held, (tp_rank + 1) * held), per_shard, writes=True)
    if tp_size % kv_heads == 0 and per_shard == 1:
        replicas = tp_size // kv_heads
        shard = tp_rank // replicas
        return HeadShare(range(shard, shard + 1), 1, writes=tp_rank % replicas == 0)
    raise ValueError(f"{tp_size} ranks cannot share {kv_heads} KV heads cut into {shards} shards")


def replicated_share(tp_rank: int) -> HeadShare:
    """The share of a rank under MLA: all of the page, in one shard."""
    return HeadShare(range(1), 1, writes=tp_rank == 0)


def split(page: Bytes, shape: PageShape, share: HeadShare) -> Iterator[tuple[int, Bytes]]:
    """The shards of a flat page: index and contiguous bytes, in a form that does not depend on the layout."""
    canonical = shape.canonical(page)
    for shard, heads in share.pieces():
        yield shard, np.ascontiguousarray(canonical[:, :, :, heads]).reshape(-1)


def merge(shard: Bytes, heads: slice, page: Bytes, shape: PageShape) -> None:
    """Put the bytes of one shard where they belong in a flat page; the inverse of :func:`split`."""
    target = shape.canonical(page)[:, :, :, heads]
    target[...] = shard.reshape(target.shape)


def shard_bytes(shape: PageShape, share: HeadShare) -> int:
    """The size of one shard; the same for every rank of every server of the model."""
    return shape.nbytes // shape.heads * share.heads_per_shard
