"""How servers are started: no device and no port is shared, neighbours stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.engines.sglang.command import (
    DeviceKind,
    GroupOptions,
    LaunchPlan,
    ServerTemplate,
    plan_launch,
    plan_pool,
)
from heddle.engines.sglang.devices import choose_devices, parse_devices
from heddle.engines.sglang.ports import LAST_PORT, PORTS_PER_WORKER, PortBlock, choose_ports
from heddle.errors import ConfigError
from heddle.types import WorkerId, WorkerSpec

TEMPLATE = ServerTemplate(model="/models/tiny", context_tokens=4096, state_dir=Path("/state"))
BASE_PORT = 30000

degrees = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=12)


def specs_of(pool: Sequence[int], slots: int = 16) -> list[WorkerSpec]:
    """Workers of these degrees, named as the allocator names them."""
    return [WorkerSpec(WorkerId(f"w{index}"), degree, slots) for index, degree in enumerate(pool)]


def value_of(plan: LaunchPlan, flag: str) -> str:
    """What stands behind a flag that is given once."""
    (place,) = [place for place, word in enumerate(plan.command) if word == flag]
    return plan.command[place + 1]


@given(pool=degrees, gpus=st.integers(1, 16))
def test_no_device_and_no_port_is_shared(pool: list[int], gpus: int) -> None:
    """Whatever the pool and the number of GPUs: it is refused, or each worker has its own."""
    try:
        plans = plan_pool(specs_of(pool), range(gpus), BASE_PORT, TEMPLATE)
    except ConfigError:
        assert sum(pool) > gpus
        return
    devices = [device for plan in plans for device in plan.devices]
    assert len(set(devices)) == len(devices) == sum(pool)
    assert set(devices) <= set(range(gpus))
    ports = [port for plan in plans for port in plan.ports.ports]
    assert len(set(ports)) == len(ports)
    for plan, degree in zip(plans, pool, strict=True):
        assert len(plan.devices) == degree
        named = [int(value_of(plan, flag)) for flag in ("--port", "--nccl-port")]
        named.append(int(value_of(plan, "--dist-init-addr").rpartition(":")[2]))
        assert len(set(named)) == 3
        assert set(named) <= set(plan.ports.ports)


@given(pool=degrees, exponent=st.integers(0, 4))
def test_powers_of_two_fill_every_device_by_aligned_blocks(pool: list[int], exponent: int) -> None:
    """In any order, as long as their sum fits: no block is broken up that a later worker needs."""
    gpus = 1 << exponent
    fitting: list[int] = []
    for degree in pool:
        if sum(fitting) + degree <= gpus:
            fitting.append(degree)
    for plan in plan_pool(specs_of(fitting), range(gpus), BASE_PORT, TEMPLATE):
        first, degree = plan.devices[0], len(plan.devices)
        assert first % degree == 0
        assert plan.devices == tuple(range(first, first + degree))


@given(degree=st.integers(1, 8), taken=st.sets(st.integers(0, 7)))
def test_devices_are_found_whenever_enough_are_free(degree: int, taken: set[int]) -> None:
    """However the free ones are scattered; and a run of neighbours is taken where there is one."""
    chosen = choose_devices(degree, range(8), taken)
    free = [device for device in range(8) if device not in taken]
    if len(free) < degree:
        assert chosen is None
        return
    assert chosen is not None
    assert len(set(chosen)) == degree
    assert set(chosen) <= set(free)
    runs = [
        range(start, start + degree)
        for start in range(9 - degree)
        if set(range(start, start + degree)) <= set(free)
    ]
    assert not runs or chosen in [tuple(run) for run in runs]


def test_a_block_follows_the_order_of_neighbours() -> None:
    """Indices that are far apart may be neighbours."""
    order = (0, 3, 1, 2)
    assert choose_devices(2, order, ()) == (0, 3)
    assert choose_devices(2, order, {0}) == (1, 2)


def test_a_degree_beyond_the_machine_is_an_error() -> None:
    """Waiting would not help."""
    with pytest.raises(ConfigError, match="degree 8 does not fit on 4"):
        choose_devices(8, range(4), ())


@pytest.mark.parametrize(("text", "expected"), [("0-3,6", (0, 1, 2, 3, 6)), ("5", (5,)), ("1,0,1", (0, 1))])
def test_devices_are_named_by_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    """Ascending, each once."""
    assert parse_devices(text) == expected


@pytest.mark.parametrize("text", ["", "all", "3-1", "0,,1", "-1", "0-"])
def test_other_lists_of_devices_are_refused(text: str) -> None:
    """With the key that they were given for."""
    with pytest.raises(ConfigError, match=r"engine\.sglang\.gpus"):
        parse_devices(text)


@given(busy=st.sets(st.integers(BASE_PORT, BASE_PORT + 100)))
def test_ports_in_use_are_passed_over(busy: set[int]) -> None:
    """A whole block is taken or none of it."""
    first = choose_ports(BASE_PORT, set(), lambda port: port not in busy)
    second = choose_ports(BASE_PORT, {first}, lambda port: port not in busy)
    assert not busy & {*first.ports, *second.ports}
    assert not {*first.ports} & {*second.ports}
    assert (first.first - BASE_PORT) % PORTS_PER_WORKER == 0


def test_no_port_is_invented_beyond_the_last() -> None:
    """The block must fit below the end of the range."""
    assert choose_ports(LAST_PORT - 15, set(), lambda port: True).ports[-1] == LAST_PORT
    with pytest.raises(ConfigError, match="base_port"):
        choose_ports(LAST_PORT - 14, set(), lambda port: True)


def test_the_command_says_what_heddle_decides_and_then_what_the_user_wants() -> None:
    """Defaults stand before the user's arguments, which therefore win; a group's own stand last."""
    template = ServerTemplate(
        model="/models/tiny",
        context_tokens=4096,
        state_dir=Path("/state"),
        default_args=("--schedule-policy", "fcfs"),
        extra_args=("--mem-fraction-static", "0.8"),
        environment={"NCCL_DEBUG": "WARN"},
        groups={2: GroupOptions(("--quantization", "fp8"), {"NCCL_DEBUG": "INFO"})},
    )
    (spec,) = specs_of([2])
    plan = plan_launch(spec, (4, 5), PortBlock(31000), template)
    assert plan.command == (
        *("python", "-m", "sglang.launch_server", "--model-path", "/models/tiny", "--tp-size", "2"),
        *("--host", "127.0.0.1", "--port", "31000", "--nccl-port", "31001"),
        *("--dist-init-addr", "127.0.0.1:31002", "--context-length", "4096", "--max-running-requests", "16"),
        *("--incremental-streaming-output", "--weight-version", "0"),
        *("--schedule-policy", "fcfs", "--mem-fraction-static", "0.8", "--quantization", "fp8"),
    )
    assert plan.environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "TRITON_CACHE_DIR": "/state/w0/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/state/w0/inductor",
        "NCCL_DEBUG": "INFO",
    }
    assert plan.url == "http://127.0.0.1:31000"


def test_the_environment_of_heddle_is_inherited_but_for_a_trainers_allocator() -> None:
    """And the plan's variables win."""
    (spec,) = specs_of([1])
    plan = plan_launch(spec, (0,), PortBlock(31000), TEMPLATE)
    inherited = {
        "HOME": "/root",
        "CUDA_VISIBLE_DEVICES": "7",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    environment = plan.child_environment(inherited)
    assert (environment["HOME"], environment["CUDA_VISIBLE_DEVICES"]) == ("/root", "0")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment


def test_on_a_cpu_a_worker_is_bound_to_the_cores_of_its_ranks() -> None:
    """One core a rank, and no GPU."""
    template = ServerTemplate(
        model="/models/tiny", context_tokens=4096, state_dir=Path("/state"), device=DeviceKind.CPU
    )
    one, two = plan_pool(specs_of([2, 1]), range(3), BASE_PORT, template)
    assert one.environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert two.environment["SGLANG_CPU_OMP_THREADS_BIND"] == "2"
    assert value_of(one, "--device") == "cpu"
    assert "CUDA_VISIBLE_DEVICES" not in one.environment


def test_a_server_that_preempts_runs_a_share_of_its_slots() -> None:
    """The rest wait in it; at least one runs."""
    template = replace(TEMPLATE, native_share=0.25)
    for slots, running in ((16, "4"), (2, "1")):
        (plan,) = plan_pool(specs_of([1], slots), range(1), BASE_PORT, template)
        assert value_of(plan, "--max-running-requests") == running


@pytest.mark.parametrize("argument", ["--port", "--tp=4", "--weight-version", "--model-path=/other"])
def test_what_heddle_owns_cannot_be_set_twice(argument: str) -> None:
    """Neither for all servers nor for a group."""
    for options in (
        {"extra_args": (argument,)},
        {"groups": {2: GroupOptions((argument, "1"))}},
    ):
        with pytest.raises(ConfigError, match=r"engine\.sglang\..*extra_args: --.* is set by Heddle"):
            ServerTemplate(model="m", context_tokens=64, state_dir=Path("/s"), **options)
