"""Which GPUs there are, and who of them are neighbours."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from heddle.engines.sglang.inventory import Gpu, Inventory, load_nvml, memory_in_use, read_inventory
from heddle.errors import ConfigError

GIB = 1024**3


class NvmlError(Exception):
    """What the library raises."""


@dataclass(frozen=True)
class Memory:
    total: int
    used: int


@dataclass
class RecordedNvml:
    """Answers of the management library as they would come from a machine with these GPUs."""

    used: Sequence[int]
    """Bytes in use, one entry a GPU; each has 80 GiB."""
    links: frozenset[tuple[int, int]] = frozenset()
    driver: bool = True
    open_sessions: int = 0
    NVMLError: type[Exception] = NvmlError
    NVML_P2P_CAPS_INDEX_NVLINK: int = 2
    NVML_P2P_STATUS_OK: int = 0
    calls: list[str] = field(default_factory=list)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NvmlError("Driver Not Loaded")
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self.open_sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{'abcdefgh'[handle] * 4}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        return Memory(80 * GIB, self.used[handle])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, caps: int) -> int:
        if not self.links:
            raise NvmlError("Not Supported")
        return 0 if (min(one, other), max(one, other)) in self.links else 3


def inventory_of(nvml: RecordedNvml, visible: str | None = None) -> Inventory:
    """What Heddle sees, under this ``CUDA_VISIBLE_DEVICES``."""
    found = read_inventory(lambda: nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert nvml.open_sessions == 0
    return found


def test_all_gpus_are_found_with_their_names() -> None:
    """In the order of the bus, whatever they lack."""
    found = inventory_of(RecordedNvml(used=[0, 0]))
    assert found.gpus == tuple(
        Gpu(index, f"GPU-{letter * 4}", "NVIDIA H100 80GB HBM3", 80 * GIB)
        for index, letter in enumerate("ab")
    )
    assert found.order == (0, 1)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1,3", (1, 3)), ("GPU-cccc,0", (0, 2)), ("GPU-b", (1,)), (" 2 , 1 ", (1, 2)), (None, (0, 1, 2, 3))],
)
def test_an_inherited_restriction_is_respected(visible: str | None, expected: tuple[int, ...]) -> None:
    """A cluster's scheduler gives a job some of the GPUs, by index or by identity."""
    assert inventory_of(RecordedNvml(used=[0] * 4), visible).order == expected


@pytest.mark.parametrize(
    ("visible", "message"),
    [("9", "no GPU 9"), ("GPU-x", "no GPU here"), ("GPU-", "no GPU here"), ("", "shows no GPU")],
)
def test_a_restriction_to_what_is_not_there_is_an_error(visible: str, message: str) -> None:
    """Also one to nothing at all."""
    with pytest.raises(ConfigError, match=message):
        inventory_of(RecordedNvml(used=[0] * 4), visible)


def test_gpus_joined_by_nvlink_are_neighbours() -> None:
    """Pairs 0-2 and 1-3 are bridged: a worker of two GPUs should get such a pair."""
    found = inventory_of(RecordedNvml(used=[0] * 4, links=frozenset({(0, 2), (1, 3)})))
    assert found.order == (0, 2, 1, 3)
    assert found.select([0, 1, 3]).order == (0, 1, 3)


def test_memory_in_use_is_a_share() -> None:
    """Of each GPU that was asked for."""
    assert memory_in_use([1], lambda: RecordedNvml(used=[0, 20 * GIB])) == {1: 0.25}


def test_a_machine_without_a_driver_says_so() -> None:
    """The library's own word is kept."""
    with pytest.raises(ConfigError, match="no usable NVIDIA driver: Driver Not Loaded"):
        read_inventory(lambda: RecordedNvml(used=[], driver=False), {})


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is not None, reason="nvidia-ml-py is installed")
def test_a_missing_library_is_named_with_its_remedy() -> None:
    """It is an extra: most machines need none."""
    with pytest.raises(ConfigError, match=r"pip install 'heddle\[sglang\]'"):
        load_nvml()
