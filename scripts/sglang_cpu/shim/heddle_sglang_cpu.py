"""What SGLang's hierarchical cache lacks on a CPU: host memory without pinning, transfers by plain copies.

Loaded by SGLang through its plugin entry point. It replaces private names, so it fits one version only.
"""

import inspect
import os
from typing import Any

from torch import Tensor


def register() -> None:
    """Called once in each of SGLang's processes."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.mem_cache.pool_host import common, mha

    common.ALLOC_MEMORY_FUNCS["cpu"] = _allocate
    _never_pin(mha.HostKVCache)
    mha.transfer_kv_direct = _copy_slots
    mha.transfer_kv_per_layer_direct_pf_lf = _load_layer
    mha.transfer_kv_all_layer_direct_lf_pf = _store_layers


def _allocate(
    dims: Any,
    dtype: Any,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> Tensor:
    return allocator.allocate(dims, dtype=dtype, device=device)


def _never_pin(cache: type) -> None:
    original = cache.__init__
    signature = inspect.signature(original)

    def unpinned(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments["pin_memory"] = False
        original(*bound.args, **bound.kwargs)

    cache.__init__ = unpinned


def _copy_slots(
    src_layers: list[Tensor],
    dst_layers: list[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Layer by layer, both sides by slots."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _load_layer(
    src_ptrs: list[Tensor],
    dst_ptrs: list[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """From host pages ``[page, layer, token, ...]`` to the device's slots of one layer."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].reshape(-1, *target.shape[1:])


def _store_layers(
    src_ptrs: list[Tensor], dst_ptrs: list[Tensor], src_indices: Tensor, dst_indices: Tensor, page_size: int
) -> None:
    """From the device's slots of all layers to host pages; ``src_ptrs`` has each target's in turn."""
    pages = dst_indices[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for index, target in enumerate(dst_ptrs):
        for layer in range(layers):
            source = src_ptrs[index * layers + layer]
            target[pages, layer] = source[src_indices].reshape(-1, page_size, *source.shape[1:])
