"""Sweeps on fakes: what is launched when, what is kept, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from profiling_builders import END_OF_TURN, make_launcher, make_plan

from heddle.agent.ports import GenerationRequest
from heddle.engines.fake import FakeFaults, FakeLauncher, FakeModel, FakeWorker
from heddle.errors import ConfigError, EngineError, EngineUnavailable
from heddle.profiling.measured import MeasuredDegree
from heddle.profiling.sweep import Sweep, SweepPlan, powers_of_two
from heddle.text.byte_tokenizer import ByteTokenizer
from heddle.types import WorkerSpec


class OneAtATime:
    """A launcher that notes the degrees, and how many workers were alive at most."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.degrees: list[int] = []
        self.most_alive = 0
        self._launcher = launcher

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        """See ``EngineLauncher.launch``."""
        worker = await self._launcher.launch(spec, log_path)
        self.degrees.append(spec.tp_degree)
        alive = sum(not launched.stopped for launched in self._launcher.launched)
        self.most_alive = max(self.most_alive, alive)
        return worker


async def run(launcher: FakeLauncher | OneAtATime, plan: SweepPlan) -> tuple[MeasuredDegree, ...]:
    """One sweep with nobody listening."""
    sweep = Sweep(
        launcher, ByteTokenizer(), plan, log_dir=Path("unused"), progress=lambda words: None, seed=0
    )
    return await sweep.run()


async def test_every_point_is_measured_in_every_round() -> None:
    """Rounds alternate between degrees, so that slow changes of the machine hit all of them."""
    launcher = OneAtATime(make_launcher())
    measured = await run(launcher, make_plan(degrees=(1, 2), rounds=2))
    assert launcher.degrees == [1, 2, 1, 2]
    assert [degree.tp_degree for degree in measured] == [1, 2]
    for degree in measured:
        assert [point.batch for point in degree.points] == [1, 2]
        assert all(point.typical_s >= 0.001 for point in degree.points)
        assert degree.prefill_tokens_per_s > 0
        assert degree.kv_capacity_tokens == 1 << 20
        assert degree.slots == 2


async def test_no_two_workers_are_alive_together() -> None:
    """The threads of all servers never exceed the cores, and nothing is left at the end."""
    fakes = make_launcher()
    launcher = OneAtATime(fakes)
    await run(launcher, make_plan(degrees=(1, 2, 4), batches=(1,), rounds=1))
    assert launcher.most_alive == 1
    assert [worker.stopped for worker in fakes.launched] == [True] * 3


async def test_the_measured_table_is_monotone() -> None:
    """Planners refuse a batch that gets faster by growing; noise may not make one."""
    (degree,) = await run(make_launcher(), make_plan(batches=(1, 2, 3, 4), slots=4))
    steps = degree.profile().step_seconds
    assert list(steps) == sorted(steps)


async def test_a_model_that_ends_too_early_is_an_error_not_a_guess() -> None:
    """Nothing is made up where the model will not go on."""
    launcher = make_launcher(ends_after=3)
    with pytest.raises(EngineError, match="a batch of 1 too early"):
        await run(launcher, make_plan())
    assert [worker.stopped for worker in launcher.launched] == [True]


async def test_other_prompts_are_tried_before_giving_up() -> None:
    """A generation that ends early costs one attempt, not the sweep."""
    asked = 0

    def script(request: GenerationRequest) -> list[int]:
        nonlocal asked
        asked += request.max_new_tokens > 1
        return [7] * (5 if asked <= 2 else request.max_new_tokens) + [END_OF_TURN]

    model = FakeModel(script=script, token_delay_s=0.001, end_of_turn_id=END_OF_TURN)
    (degree,) = await run(FakeLauncher(model=model), make_plan(batches=(1,)))
    assert asked == 3
    assert len(degree.points[0].step_seconds) >= 2


async def test_a_crash_stops_the_worker_and_comes_out() -> None:
    """An engine that dies in the middle leaves no process."""
    launcher = make_launcher(faults=[FakeFaults(crash_after_tokens=4)])
    with pytest.raises((EngineUnavailable, ExceptionGroup)):
        await run(launcher, make_plan())
    assert [worker.stopped for worker in launcher.launched] == [True]


async def test_a_cancelled_sweep_stops_its_worker() -> None:
    """Control-C in the middle leaves no process either."""
    launcher = make_launcher()
    task = asyncio.ensure_future(run(launcher, make_plan(rounds=1000)))
    async with asyncio.timeout(10):
        while not (launcher.launched and launcher.launched[0].engine.generations > 1):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert all(worker.stopped for worker in launcher.launched)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"degrees": ()}, "at least one degree"),
        ({"degrees": (2, 1)}, "degrees must ascend"),
        ({"batches": (2,)}, "batches must ascend from 1"),
        ({"batches": (1, 1)}, "batches must ascend from 1"),
        ({"batches": (1, 4)}, "a batch of 4 does not fit 2 slots"),
        ({"context_tokens": 20}, "context must be at least"),
        ({"room_tokens": 100}, "needs room for"),
        ({"rounds": 0}, "at least one round"),
    ],
)
def test_an_impossible_sweep_is_refused(changes: dict[str, object], complaint: str) -> None:
    """Before any worker starts."""
    with pytest.raises(ConfigError, match=complaint):
        make_plan(**changes)  # type: ignore[arg-type]  # one wrong value each


@pytest.mark.parametrize(
    ("most", "expected"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))]
)
def test_powers_of_two_end_with_the_most(most: int, expected: tuple[int, ...]) -> None:
    """The largest batch is always measured: beyond it a table is a guess."""
    assert powers_of_two(most) == expected
