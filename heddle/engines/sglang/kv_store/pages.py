"""Pages in and out of the store, for one rank: ``heads`` and ``files`` put together, still without torch.

A page has a *key*, SGLang's hash over all tokens up to its end. The hash begins with the request's
``extra_key``, which is where Heddle puts the weight version, so that pages of other weights are never found.
What else must agree (model, number format, page size, cut) is hashed into the name of the directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from .files import ShardFiles, StoreCounters
from .heads import (
    Bytes,
    HeadShare,
    PageShape,
    head_share,
    merge,
    replicated_share,
    shard_bytes,
    shard_count,
    split,
)
from .options import StoreOptions

FORMAT_VERSION = 1
"""Change it when the bytes of a shard change their meaning; older ones are then not found."""


class PageStore:
    """The pages of one rank. Methods raise ``OSError`` where the file system fails. Safe in threads."""

    def __init__(
        self,
        options: StoreOptions,
        shape: PageShape,
        *,
        number_format: str,
        latent: bool,
        tp_rank: int,
        tp_size: int,
        stage: int,
        stages: int,
    ) -> None:
        """``latent`` says that the model uses MLA; ``stage`` of ``stages`` is the pipeline rank.

        Raises ``ValueError`` where the rank's heads do not go into whole shards.
        """
        self._shape = shape
        self._share = _share(options, shape, latent=latent, tp_rank=tp_rank, tp_size=tp_size)
        self._shard_bytes = shard_bytes(shape, self._share)
        shards = 1 if latent else shard_count(options.kv_heads, options.largest_tp)
        described = (FORMAT_VERSION, options.model, number_format, options.kv_heads, shards, stage, stages)
        sizes = (shape.layers, shape.tokens, shape.head_bytes, shape.halves)
        namespace = hashlib.sha256(repr((described, sizes)).encode()).hexdigest()[:32]
        self._files = ShardFiles(options.root, namespace=namespace, budget_bytes=options.budget_bytes)

    @property
    def counters(self) -> StoreCounters:
        return self._files.counters

    def leading(self, keys: Sequence[str]) -> int:
        """How many of the first pages are there without a gap."""
        for index, key in enumerate(keys):
            if not all(name in self._files for name in self._names(key)):
                return index
        return len(keys)

    def put(self, key: str, page: Bytes) -> bool:
        """Store this rank's part of a page; True where it is there afterwards."""
        if not self._share.writes:
            return True
        pieces = split(page, self._shape, self._share)
        return all(self._files.write(_name(key, shard), data) for shard, data in pieces)

    def get(self, key: str, page: Bytes) -> bool:
        """Fill this rank's page; False, and undefined bytes, where a part of it is not there."""
        data = np.empty(self._shard_bytes, dtype=np.uint8)
        for shard, heads in self._share.pieces():
            if not self._files.read(_name(key, shard), data):
                return False
            merge(data, heads, page, self._shape)
        return True

    def touch(self, keys: Sequence[str]) -> None:
        """Mark pages of one prefix as used now: its end is evicted before its beginning."""
        self._files.touch([name for key in keys for name in self._names(key)])

    def clear(self) -> None:
        """Forget the pages of this model, those of other ranks included."""
        self._files.clear()

    def _names(self, key: str) -> Iterable[str]:
        return (_name(key, shard) for shard in self._share.shards)


def _name(key: str, shard: int) -> str:
    return f"{key}.{shard}"


def _share(options: StoreOptions, shape: PageShape, *, latent: bool, tp_rank: int, tp_size: int) -> HeadShare:
    if latent:
        return replicated_share(tp_rank)
    shards = shard_count(options.kv_heads, options.largest_tp)
    share = head_share(options.kv_heads, shards, tp_rank=tp_rank, tp_size=tp_size)
    held = len(share.shards) * share.heads_per_shard
    if held != shape.heads:
        raise ValueError(
            f"KV store: rank {tp_rank} of {tp_size} has {shape.heads} KV heads, "
            f"of {options.kv_heads} it should have {held}: kv_heads is wrong"
        )
    return share
