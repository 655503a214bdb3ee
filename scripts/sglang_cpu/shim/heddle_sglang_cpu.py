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
    dims: Any, dtype: Any, device: str, pin_memory: bool, allocator: Any, granularity: int | None = None
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
    sources: list[Tensor], targets: list[Tensor], source_slots: Tensor, target_slots: Tensor, page_size: int
) -> None:
    """Layer by layer, both sides by slots."""
    for source, target in zip(sources, targets, strict=True):
        target[target_slots] = source[source_slots]


def _load_layer(
    sources: list[Tensor],
    targets: list[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    layer: int,
    page_size: int,
) -> None:
    """From host pages ``[page, layer, token, ...]`` to the device's slots of one layer."""
    pages = source_slots[::page_size] // page_size
    for source, target in zip(sources, targets, strict=True):
        target[target_slots] = source[pages, layer].reshape(-1, *target.shape[1:])


def _store_layers(
    sources: list[Tensor], targets: list[Tensor], source_slots: Tensor, target_slots: Tensor, page_size: int
) -> None:
    """From the device's slots of all layers to host pages; ``sources`` holds each target's layers in turn."""
    pages = target_slots[::page_size] // page_size
    layers = len(sources) // len(targets)
    for index, target in enumerate(targets):
        for layer in range(layers):
            source = sources[index * layers + layer]
            target[pages, layer] = source[source_slots].reshape(-1, page_size, *source.shape[1:])
