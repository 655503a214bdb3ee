"""Timing one batch: which tokens count, and what becomes of a generation that ends too early."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiling_builders import make_launcher

from heddle.engines.fake import FakeEngine, FakeModel
from heddle.errors import EngineError
from heddle.profiling.steps import BatchTimer, PromptMaker, steady_steps
from heddle.text.byte_tokenizer import ByteTokenizer
from heddle.types import WorkerId, WorkerSpec


def arrivals(*, start: float, step_s: float, tokens: int) -> list[float]:
    """A generation that samples at an even pace."""
    return [start + index * step_s for index in range(tokens)]


def test_an_even_pace_is_its_step_time() -> None:
    """Every sample of an undisturbed batch is the time between two tokens."""
    samples = steady_steps([arrivals(start=s, step_s=0.02, tokens=40) for s in (0.0, 0.001)])
    assert [0.02] * 8 == pytest.approx(samples)


def test_only_the_time_counts_in_which_all_run() -> None:
    """While a batch fills and after one has ended, the others are faster: neither is seen."""
    early = arrivals(start=0.0, step_s=0.001, tokens=200)
    together = arrivals(start=0.2, step_s=0.05, tokens=40)
    after = arrivals(start=together[-1] + 0.001, step_s=0.001, tokens=200)
    late = arrivals(start=0.2, step_s=0.05, tokens=40)
    samples = steady_steps([early + together + after, late])
    assert samples
    assert [0.05] * len(samples) == pytest.approx(samples)


def test_tokens_that_travel_in_pairs_give_the_same_pace() -> None:
    """An engine may hand out several tokens at once."""
    paired = [at for at in arrivals(start=0.0, step_s=0.04, tokens=30) for _ in range(2)]
    samples = steady_steps([paired])
    assert [0.02] * len(samples) == pytest.approx(samples)


@pytest.mark.parametrize("tokens", [0, 1, 2, 10, 17])
def test_too_few_tokens_give_nothing(tokens: int) -> None:
    """One sample could be any hiccup, so fewer than two of a generation are none."""
    long = arrivals(start=0.0, step_s=0.02, tokens=100)
    assert steady_steps([long, arrivals(start=0.0, step_s=0.02, tokens=tokens)]) == []


@given(
    st.lists(
        st.lists(st.floats(0, 10), min_size=0, max_size=60).map(sorted),
        min_size=1,
        max_size=4,
    )
)
def test_samples_are_never_negative(times: list[list[float]]) -> None:
    """Whatever comes when, a step takes no negative time, and all generations are seen or none."""
    samples = steady_steps(times)
    assert all(sample >= 0 for sample in samples)


async def test_a_batch_is_aborted_once_it_was_seen_long_enough() -> None:
    """Generations without an end cost no more than the steps that are wanted."""
    worker = await make_launcher().launch(WorkerSpec(WorkerId("w"), 1, 3), Path("unused"))
    timer = BatchTimer(worker.engine, steps=32, room_tokens=100_000)
    samples = await timer.time([[1, 2], [3, 4], [5, 6]])
    assert len(samples) >= 3 * 3
    assert (await worker.engine.load()).running == 0


async def test_a_batch_that_ends_too_early_gives_nothing() -> None:
    """The caller tries other prompts; half a batch is no batch."""
    worker = await make_launcher(ends_after=5).launch(WorkerSpec(WorkerId("w"), 1, 2), Path("unused"))
    timer = BatchTimer(worker.engine, steps=32, room_tokens=1000)
    assert await timer.time([[1], [2]]) == []


async def test_a_dead_engine_is_reported() -> None:
    """The error of the engine comes out of the group that ran the batch."""
    engine = FakeEngine(slots=2, model=FakeModel())
    engine.crash("gone")
    timer = BatchTimer(engine, steps=32, room_tokens=1000)
    with pytest.raises(ExceptionGroup) as raised:
        await timer.time([[1], [2]])
    assert raised.group_contains(EngineError, match="gone")


def test_prompts_have_the_wanted_length_and_no_common_beginning() -> None:
    """Nothing of a prompt may be in the cache before it is computed."""
    maker = PromptMaker(ByteTokenizer(), 100, seed=0)
    prompts = [maker.prompt() for _ in range(20)]
    assert {len(prompt) for prompt in prompts} == {100}
    assert len({tuple(prompt[:24]) for prompt in prompts}) == 20


def test_prompts_repeat_themselves() -> None:
    """So that a model goes on instead of ending its turn."""
    prompt = PromptMaker(ByteTokenizer(), 96, seed=1).prompt()
    assert prompt[:24] == prompt[24:48] == prompt[48:72]
