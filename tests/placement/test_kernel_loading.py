"""What a placer runs is compiled when its kernels are loaded, and nothing is left for the first plan."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
from test_placers import BY_LENGTH, NAMES, OPTIONS, make_trajectory, make_worker

from compiled_kernels import later_compiled, load_and_run
from heddle.placement import kernel_loader, make_placer


def plan(name: str) -> None:
    """For a batch of many lengths, on workers of two degrees; and again, beside those that live there."""
    rng = np.random.default_rng(0)
    lengths = rng.exponential(1000.0, 300)
    batch = [make_trajectory(f"t{n}", remaining=float(length)) for n, length in enumerate(lengths)]
    workers = [make_worker(f"w{n}", degree=1 + 3 * (n % 2), slots=16) for n in range(6)]
    placer = make_placer(name, OPTIONS)
    placer.prepare(batch, workers)
    for trajectory in batch[:250]:
        trajectory.worker_id = workers[0].worker_id
    placer.prepare(batch, workers)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_the_first_plan_finds_everything_compiled(name: str) -> None:
    """In a process of its own: here, other tests have compiled already."""
    assert later_compiled(__file__, name) == "later: []"


def test_placers_without_kernels_load_none() -> None:
    assert {name for name in NAMES if kernel_loader(name) is not None} == set(BY_LENGTH)


if __name__ == "__main__":
    load_and_run(kernel_loader(sys.argv[1]), partial(plan, sys.argv[1]))
