"""The command and the environment of a server. Pure: the same worker, devices and ports, the same answer.

What Heddle must decide (model, degree, ports, slots, what its adapter counts on) is set here and may not be
set again; everything else is a default that the configuration's arguments, which stand behind it, overrule.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from heddle.engines.sglang.devices import choose_devices
from heddle.engines.sglang.inventory import VISIBLE_DEVICES
from heddle.engines.sglang.ports import PortBlock, choose_ports
from heddle.engines.sglang.priority import running_slots
from heddle.errors import ConfigError
from heddle.types import WorkerId, WorkerSpec

HOST = "127.0.0.1"
"""Servers trust whoever reaches them, so they listen on loopback."""

DEFAULT_ARGUMENTS = (
    *("--schedule-policy", "fcfs"),
    "--enable-priority-scheduling",
    *("--priority-scheduling-preemption-threshold", "0"),
    *("--default-priority-value", "0"),
    *("--retraction-policy", "priority"),
    "--enable-session-radix-cache",
    "--enable-metrics",
    *("--log-level-http", "warning"),
)
"""Priorities order requests and preempt; the prefixes of open trajectories are evicted last."""

OWNED_FLAGS = frozenset(
    {
        *("--model-path", "--model", "--tp-size", "--tp", "--tensor-parallel-size", "--context-length"),
        *("--host", "--port", "--nccl-port", "--dist-init-addr", "--base-gpu-id", "--gpu-id-step"),
        *("--max-running-requests", "--weight-version", "--incremental-streaming-output", "--device"),
    }
)
"""Set by Heddle alone."""

UNSET_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Made for a trainer's allocator; SGLang's own memory saver and CUDA graphs do not work under some values."""


class DeviceKind(StrEnum):
    """What a unit of a worker's parallel degree is."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What the workers of one degree get beyond the others."""

    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerTemplate:
    """What all servers of a pool have in common."""

    model: str
    """As SGLang is to see it: a directory, or a name that it can bring."""
    context_tokens: int
    state_dir: Path
    """Compile caches, one directory for each worker."""
    command: tuple[str, ...] = ("python", "-m", "sglang.launch_server")
    device: DeviceKind = DeviceKind.CUDA
    default_args: tuple[str, ...] = DEFAULT_ARGUMENTS
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[int, GroupOptions] = field(default_factory=dict)
    """By parallel degree."""
    native_share: float | None = None
    """Of a worker's slots, those that its server runs at once, where it preempts by itself."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for an argument that is Heddle's to set."""
        for place, arguments in (
            ("default_args", self.default_args),
            ("extra_args", self.extra_args),
            *((f"groups.{degree}.extra_args", group.extra_args) for degree, group in self.groups.items()),
        ):
            for argument in arguments:
                if (flag := argument.partition("=")[0]) in OWNED_FLAGS:
                    raise ConfigError(f"engine.sglang.{place}: {flag} is set by Heddle")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How one server is started."""

    spec: WorkerSpec
    devices: tuple[int, ...]
    ports: PortBlock
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Set over the environment of Heddle."""
    unset: tuple[str, ...]
    """Removed from it."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports.http}"

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the process."""
        kept = {name: value for name, value in inherited.items() if name not in self.unset}
        return {**kept, **self.environment}

    def shell(self) -> str:
        """What to type to start it by hand."""
        unset = [word for name in self.unset for word in ("-u", name)]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *unset, *variables, *self.command])


def plan_launch(
    spec: WorkerSpec, devices: Sequence[int], ports: PortBlock, template: ServerTemplate
) -> LaunchPlan:
    """The launch of one worker on these devices and ports."""
    group = template.groups.get(spec.tp_degree, GroupOptions())
    arguments = [
        *("--model-path", template.model),
        *("--tp-size", str(spec.tp_degree)),
        *("--host", HOST, "--port", str(ports.http)),
        *("--nccl-port", str(ports.nccl)),
        *("--dist-init-addr", f"{HOST}:{ports.rendezvous}"),
        *("--context-length", str(template.context_tokens)),
        *("--max-running-requests", str(running_slots(spec.slots, template.native_share))),
        "--incremental-streaming-output",
        *("--weight-version", "0"),
        *(("--device", "cpu") if template.device is DeviceKind.CPU else ()),
    ]
    return LaunchPlan(
        spec=spec,
        devices=tuple(devices),
        ports=ports,
        command=(
            *template.command, *arguments, *template.default_args, *template.extra_args, *group.extra_args
        ),
        environment={
            **_device_environment(template.device, devices),
            **_cache_environment(template.state_dir / spec.worker_id),
            **template.environment,
            **group.environment,
        },
        unset=UNSET_VARIABLES,
    )  # fmt: skip


def plan_pool(
    specs: Sequence[WorkerSpec], order: Sequence[int], base_port: int, template: ServerTemplate
) -> tuple[LaunchPlan, ...]:
    """All launches of a pool on an idle machine whose devices are ``order``.

    Raises ``ConfigError`` where the devices do not suffice.
    """
    devices: dict[WorkerId, tuple[int, ...]] = {}
    plans: list[LaunchPlan] = []
    for spec in specs:
        taken = {device for block in devices.values() for device in block}
        chosen = choose_devices(spec.tp_degree, order, taken)
        if chosen is None:
            wanted = "+".join(str(other.tp_degree) for other in specs)
            raise ConfigError(f"pool {wanted} does not fit on {len(order)} devices")
        devices[spec.worker_id] = chosen
        ports = choose_ports(base_port, {plan.ports for plan in plans}, lambda port: True)
        plans.append(plan_launch(spec, chosen, ports, template))
    return tuple(plans)


def _device_environment(device: DeviceKind, devices: Sequence[int]) -> dict[str, str]:
    if device is DeviceKind.CPU:
        binding = "|".join(map(str, devices))
        return {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": binding, "OMP_NUM_THREADS": "1"}
    # CUDA counts the fastest GPU as 0 unless told otherwise; NVML counts along the PCI bus.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE_DEVICES: ",".join(map(str, devices))}


def _cache_environment(directory: Path) -> dict[str, str]:
    """Compilers of two servers that share a cache corrupt each other's files."""
    return {
        "TRITON_CACHE_DIR": str(directory / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
    }
