"""The GPUs of this machine, as NVIDIA's management library (NVML) tells them. Needs ``heddle[sglang]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from heddle.errors import ConfigError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``index`` is NVML's, in the order of the PCI bus; sizes are bytes."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs that Heddle may use, ascending by index."""

    gpus: tuple[Gpu, ...]
    nvlinks: frozenset[tuple[int, int]] = frozenset()
    """Pairs ``(lower, higher)`` of indices with a direct NVLink (also through NVSwitch) between them."""

    @property
    def order(self) -> tuple[int, ...]:
        """The indices so that those joined by NVLink are neighbours: island after island."""
        remaining = [gpu.index for gpu in self.gpus]
        ordered: list[int] = []
        while remaining:
            island = self._island(remaining[0])
            ordered += island
            remaining = [index for index in remaining if index not in island]
        return tuple(ordered)

    def select(self, indices: Sequence[int]) -> Inventory:
        """The part with these indices. Raises ``ConfigError`` for one that is not there."""
        present = {gpu.index for gpu in self.gpus}
        if absent := sorted(set(indices) - present):
            there = ", ".join(map(str, sorted(present))) or "none"
            raise ConfigError(f"engine.sglang.gpus: no GPU {absent[0]} here; there are: {there}")
        kept = tuple(gpu for gpu in self.gpus if gpu.index in indices)
        links = frozenset(pair for pair in self.nvlinks if set(pair) <= set(indices))
        return Inventory(kept, links)

    def _island(self, index: int) -> list[int]:
        """Whatever can be reached over NVLinks from ``index``, ascending."""
        reached, border = {index}, [index]
        while border:
            here = border.pop()
            for pair in self.nvlinks:
                if here in pair:
                    other = sum(pair) - here
                    if other not in reached:
                        reached.add(other)
                        border.append(other)
        return sorted(reached)


class Nvml(Protocol):
    """What is used of the module ``pynvml``; its handles and structures are untyped."""

    NVMLError: type[Exception]
    NVML_P2P_CAPS_INDEX_NVLINK: int
    NVML_P2P_STATUS_OK: int

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, caps: int) -> int: ...


def load_nvml() -> Nvml:
    """The library. Raises ``ConfigError`` where it is not installed."""
    try:
        import pynvml
    except ImportError as exc:
        raise ConfigError("GPUs cannot be listed without nvidia-ml-py: pip install 'heddle[sglang]'") from exc
    library: Nvml = pynvml
    return library


def read_inventory(
    load: Callable[[], Nvml] = load_nvml, environment: Mapping[str, str] = os.environ
) -> Inventory:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process; all where it is not set.

    Raises ``ConfigError`` where there is no driver, no GPU, or a GPU named that does not exist.
    """
    with _session(load()) as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(nvml, index, handle) for index, handle in enumerate(handles))
        links = frozenset(
            (a, b) for b in range(len(handles)) for a in range(b) if _linked(nvml, handles[a], handles[b])
        )
    everything = Inventory(gpus, links)
    found = everything
    if (visible := environment.get(VISIBLE_DEVICES)) is not None:
        found = everything.select(_visible_indices(visible, gpus))
    if not found.gpus:
        raise ConfigError("the NVIDIA driver shows no GPU to this process")
    return found


def memory_in_use(indices: Sequence[int], load: Callable[[], Nvml] = load_nvml) -> dict[int, float]:
    """The share of each GPU's memory that somebody uses, 0 to 1. Raises ``ConfigError``."""
    with _session(load()) as nvml:
        shares = {}
        for index in indices:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))
            shares[index] = memory.used / memory.total
        return shares


@contextmanager
def _session(nvml: Nvml) -> Iterator[Nvml]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        raise ConfigError(f"no usable NVIDIA driver: {exc}") from exc
    try:
        yield nvml
    except nvml.NVMLError as exc:
        raise ConfigError(f"the NVIDIA driver failed: {exc}") from exc
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Nvml, index: int, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), memory.total)


def _linked(nvml: Nvml, one: Any, other: Any) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:  # a GPU without NVLink does not know the question
        return False
    return status == nvml.NVML_P2P_STATUS_OK


def _visible_indices(visible: str, gpus: Sequence[Gpu]) -> list[int]:
    """Indices named by ``CUDA_VISIBLE_DEVICES``: numbers, or UUIDs that may be cut short."""
    indices = []
    for name in filter(None, (part.strip() for part in visible.split(","))):
        if name.isdecimal():
            indices.append(int(name))
            continue
        matching = [gpu.index for gpu in gpus if gpu.uuid.startswith(name)]
        if len(matching) != 1:
            raise ConfigError(f"{VISIBLE_DEVICES} names {name!r}, which is no GPU here")
        indices += matching
    return indices
