"""The class that SGLang loads: a HiCache storage backend over the shared store.

SGLang calls it from background threads that end with the first exception, so a file system that fails is told
as a miss, or as a page that could not be kept, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)

from .heads import Bytes, PageLayout, PageShape
from .options import StoreOptions
from .pages import PageStore

if TYPE_CHECKING:
    from sglang.srt.mem_cache.pool_host import HostKVCache

logger = logging.getLogger(__name__)


class HeddleKvStore(HiCacheStorage):  # type: ignore[misc]  # SGLang is not there where types are checked
    """Pages of one rank in the shared store; one object per scheduler process."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: object) -> None:
        """Raises ``ValueError`` for options or a parallel layout that the store cannot serve."""
        if storage_config.attn_cp_size > 1:
            raise ValueError("KV store: context parallelism cuts pages in a way that is not supported")
        self._config = storage_config
        self._options = StoreOptions.parse(storage_config.extra_config or {})
        self._pages: PageStore | None = None

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Learn the shape of a page, and open the store. Raises ``ValueError`` for a pool of another kind."""
        super().register_mem_pool_host(mem_pool_host)
        config = self._config
        latent = bool(config.is_mla_model)
        shape = _latent_shape(mem_pool_host) if latent else _head_shape(mem_pool_host)
        nbytes = mem_pool_host.get_dummy_flat_data_page().nbytes
        if shape.nbytes != nbytes:
            raise ValueError(f"KV store: a page of {nbytes} bytes is not made of {shape}")
        self._pages = PageStore(
            self._options,
            shape,
            number_format=str(mem_pool_host.dtype),
            latent=latent,
            tp_rank=config.tp_rank,
            tp_size=config.tp_size,
            stage=config.pp_rank,
            stages=config.pp_size,
        )
        logger.info("Heddle's KV store is open: %s, %s", self._options, shape)

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many of the first pages are stored without a gap."""
        try:
            return self._store.leading(keys)
        except OSError:
            logger.exception("Heddle's KV store cannot be read")
            return 0

    def batch_get(
        self, keys: list[str], target_locations: Sequence[torch.Tensor], target_sizes: object = None
    ) -> list[torch.Tensor | None]:
        """Fill the given flat pages; ``None`` from the first on that is not there, or not any more."""
        found: list[torch.Tensor | None] = [None] * len(keys)
        for index, (key, page) in enumerate(zip(keys, target_locations, strict=True)):
            if not self._get(key, page):
                break  # what follows a gap is of no use
            found[index] = page
        self._touch(keys)
        return found

    def batch_set(
        self,
        keys: list[str],
        values: Sequence[torch.Tensor],
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Store flat pages; True where all of them are stored."""
        try:
            stored = all(self._store.put(key, _bytes(page)) for key, page in zip(keys, values, strict=True))
        except OSError:
            logger.exception("Heddle's KV store cannot be written")
            return False
        self._touch(keys)
        return stored

    def exists(self, key: str) -> bool:
        """Whether this rank's part of a page is stored."""
        return self.batch_exists([key]) == 1

    def get(
        self, key: str, target_location: torch.Tensor, target_sizes: object = None
    ) -> torch.Tensor | None:
        """One page, as in ``batch_get``."""
        return self.batch_get([key], [target_location])[0]

    def set(
        self, key: str, value: torch.Tensor, target_location: object = None, target_sizes: object = None
    ) -> bool:
        """One page, as in ``batch_set``."""
        return self.batch_set([key], [value])

    def clear(self) -> None:
        """Forget this model's pages, for all servers that share the store."""
        self._store.clear()

    @property
    def _store(self) -> PageStore:
        if self._pages is None:
            raise RuntimeError("register_mem_pool_host comes first")
        return self._pages

    def _get(self, key: str, page: torch.Tensor) -> bool:
        try:
            return self._store.get(key, _bytes(page))
        except OSError:
            logger.exception("Heddle's KV store cannot be read")
            return False

    def _touch(self, keys: list[str]) -> None:
        try:
            self._store.touch(keys)
        except OSError:
            logger.exception("Heddle's KV store cannot be marked as used")


def _head_shape(pool: HostKVCache) -> PageShape:
    return PageShape(
        PageLayout.named(pool.layout),
        layers=pool.layer_num,
        tokens=pool.page_size,
        heads=pool.head_num,
        head_bytes=pool.head_dim * pool.dtype.itemsize,
    )


def _latent_shape(pool: HostKVCache) -> PageShape:
    return PageShape(
        PageLayout.named(pool.layout),
        layers=pool.layer_num,
        tokens=pool.page_size,
        heads=1,
        head_bytes=pool.kv_cache_dim * pool.dtype.itemsize,
        halves=1,
    )


def _bytes(page: torch.Tensor) -> Bytes:
    """The memory of a flat page on the host; nothing is copied."""
    view: Bytes = page.view(torch.uint8).numpy()
    return view
