"""The fake engine keeps the promises of the ``Engine`` protocol."""

from __future__ import annotations

import asyncio
import math

import pytest
from engine_builders import ignore, make_request
from hypothesis import given
from hypothesis import strategies as st

from heddle.agent.ports import GenerationRequest, TokenChunk
from heddle.engines.basic import BasicEngine
from heddle.engines.fake import FakeEngine, FakeFaults, FakeModel
from heddle.engines.fake_cache import PREFIX_BLOCK_TOKENS
from heddle.errors import EngineRejected, EngineTimeout, EngineUnavailable, UnsupportedByEngine
from heddle.types import FinishReason, SamplingParams


async def test_tokens_are_streamed_exactly_once() -> None:
    """The chunks, joined, are the generation, with a plausible logprob for each id."""
    chunks: list[TokenChunk] = []
    engine = FakeEngine(slots=1)
    generation = await engine.generate(make_request(max_new_tokens=20), chunks.append)
    assert [i for chunk in chunks for i in chunk.token_ids] == generation.token_ids
    assert [p for chunk in chunks for p in chunk.logprobs] == generation.logprobs
    assert all(math.isfinite(p) and p < 0.0 for p in generation.logprobs)


async def test_output_depends_on_prompt_and_seed_alone() -> None:
    """Two engines agree on the same request; another seed gives another text."""
    same, again = [
        await FakeEngine(slots=1).generate(make_request(max_new_tokens=30), ignore) for _ in range(2)
    ]
    other = await FakeEngine(slots=1).generate(
        make_request(max_new_tokens=30, sampling=SamplingParams(seed=2)), ignore
    )
    assert same.token_ids == again.token_ids
    assert same.token_ids != other.token_ids


@given(prompt=st.lists(st.integers(0, 40_000), min_size=1, max_size=40), cut=st.integers(1, 30))
def test_a_resumed_generation_goes_on_as_it_would_have(prompt: list[int], cut: int) -> None:
    """Partial output appended to the prompt continues the same text."""

    async def sample(prompt_ids: list[int], limit: int) -> list[int]:
        request = GenerationRequest("r", prompt_ids, limit, SamplingParams(seed=3))
        return list((await FakeEngine(slots=1).generate(request, ignore)).token_ids)

    async def check() -> None:
        whole = await sample(prompt, 40)
        head = whole[:cut]
        tail = await sample(prompt + head, 40 - len(head)) if len(head) < len(whole) else []
        assert head + tail == whole

    asyncio.run(check())


async def test_a_script_is_cut_at_the_end_of_turn_and_at_the_limit() -> None:
    """The finish reason says which of the two it was."""
    engine = FakeEngine(slots=1, model=FakeModel(script=lambda request: [7, 8, 2, 9]))
    stopped = await engine.generate(make_request(max_new_tokens=8), ignore)
    cut = await engine.generate(make_request(max_new_tokens=2), ignore)
    assert (stopped.token_ids, stopped.finish_reason) == ([7, 8, 2], FinishReason.STOP)
    assert (cut.token_ids, cut.finish_reason) == ([7, 8], FinishReason.LENGTH)


async def test_no_more_run_than_there_are_slots() -> None:
    """The rest waits and is counted as waiting."""
    engine = FakeEngine(slots=2, faults=FakeFaults(hang_after_tokens=1))
    tasks = [asyncio.create_task(engine.generate(make_request(f"r{i}"), ignore)) for i in range(5)]
    await asyncio.sleep(0.01)
    load = await engine.load()
    assert (load.running, load.waiting) == (2, 3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (await engine.load()).running == 0


async def test_an_abort_returns_what_there_is() -> None:
    """The partial output is a prefix of the whole one, and its slot is free when abort returns."""
    engine = FakeEngine(slots=1, model=FakeModel(script=lambda request: range(10, 60), token_delay_s=0.01))
    third = asyncio.Event()
    seen: list[int] = []

    def count(chunk: TokenChunk) -> None:
        seen.extend(chunk.token_ids)
        if len(seen) == 3:
            third.set()

    task = asyncio.create_task(engine.generate(make_request(max_new_tokens=50), count))
    await third.wait()
    await engine.abort("r1")
    assert (await engine.load()).running == 0
    generation = await task
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == list(range(10, 10 + len(seen)))


async def test_aborting_an_unknown_request_is_a_no_op() -> None:
    """It returns at once and breaks nothing."""
    engine = FakeEngine(slots=1)
    await engine.abort("nobody")
    await engine.health()


async def test_prefixes_are_found_again_in_whole_blocks() -> None:
    """A continuation finds its past; a stranger finds the shared beginning; a new prompt nothing."""
    engine = FakeEngine(slots=1, model=FakeModel(script=lambda request: [5] * PREFIX_BLOCK_TOKENS))
    prompt = list(range(3 * PREFIX_BLOCK_TOKENS))
    first = await engine.generate(make_request(prompt_ids=prompt, max_new_tokens=16), ignore)
    again = await engine.generate(make_request(prompt_ids=[*prompt, *first.token_ids, 9]), ignore)
    cousin = await engine.generate(make_request(prompt_ids=[*prompt[:40], 9_999, *prompt[40:]]), ignore)
    stranger = await engine.generate(make_request(prompt_ids=[77, *prompt]), ignore)
    found = [first.cached_tokens, again.cached_tokens, cousin.cached_tokens, stranger.cached_tokens]
    assert found == [0, 4 * PREFIX_BLOCK_TOKENS, 2 * PREFIX_BLOCK_TOKENS, 0]


async def test_a_full_cache_forgets() -> None:
    """Prefixes are dropped once others have filled the capacity."""
    engine = FakeEngine(slots=1, kv_capacity_tokens=8 * PREFIX_BLOCK_TOKENS)
    prompt = list(range(2 * PREFIX_BLOCK_TOKENS))
    await engine.warm_prefix(prompt)
    assert (await engine.warm_prefix(prompt)).tokens == len(prompt)
    for start in range(1000, 30_000, 1000):
        await engine.warm_prefix(list(range(start, start + 2 * PREFIX_BLOCK_TOKENS)))
    assert (await engine.warm_prefix(prompt)).tokens == 0


async def test_a_crash_fails_everything_that_runs_and_all_that_follows() -> None:
    """One generation reaches the fault; its neighbour dies with it."""
    engine = FakeEngine(slots=2, faults=FakeFaults(crash_after_tokens=2))
    results = await asyncio.gather(
        *(engine.generate(make_request(f"r{i}"), ignore) for i in range(2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [EngineUnavailable, EngineUnavailable]
    with pytest.raises(EngineUnavailable):
        await engine.health()


async def test_a_hang_meets_the_deadlines() -> None:
    """Both the gap between tokens and the whole generation are bounded."""
    engine = FakeEngine(slots=1, faults=FakeFaults(hang_after_tokens=1))
    with pytest.raises(EngineTimeout, match="no token"):
        await engine.generate(make_request(first_token_deadline_s=0.02), ignore)
    with pytest.raises(EngineTimeout, match="not done"):
        await engine.generate(make_request(deadline_s=0.02), ignore)


async def test_a_prompt_beyond_the_context_is_rejected() -> None:
    """As is an empty one, and one without room for a token."""
    engine = FakeEngine(slots=1, model=FakeModel(context_tokens=4))
    for request in (
        make_request(prompt_ids=[1] * 4),
        make_request(prompt_ids=[]),
        make_request(max_new_tokens=0),
    ):
        with pytest.raises(EngineRejected):
            await engine.generate(request, ignore)


async def test_thousands_share_an_engine() -> None:
    """Two thousand generations at once all end, and the event loop had its turn in each."""
    engine = FakeEngine(slots=64)
    generations = await asyncio.gather(
        *(engine.generate(make_request(f"r{i}", prompt_ids=[i, 1]), ignore) for i in range(2000))
    )
    assert sum(len(generation.token_ids) > 0 for generation in generations) == 2000
    assert engine.generations == 2000


async def test_a_prefix_goes_from_one_fake_to_another() -> None:
    """What was computed at the source is cached at the target, and stays so at the source."""
    source, target = FakeEngine(slots=1), FakeEngine(slots=1)
    prompt = list(range(40))
    generation = await source.generate(make_request(prompt_ids=prompt), ignore)
    context = [*prompt, *generation.token_ids]
    transfer = await source.transfer(context, target)
    whole_blocks = len(context) // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS
    assert transfer.moved_tokens == whole_blocks
    for engine in (source, target):
        assert (await engine.warm_prefix([*context, 7])).tokens == whole_blocks


async def test_a_transfer_that_cannot_be_says_why() -> None:
    """Nothing there to move, an end that died before or meanwhile, an engine of another kind."""
    source, target = FakeEngine(slots=1), FakeEngine(slots=1, model=FakeModel(transfer_delay_s=5.0))
    with pytest.raises(EngineRejected, match="nothing of the prefix"):
        await source.transfer(list(range(40)), target)
    await target.warm_prefix(list(range(40)))
    move = asyncio.create_task(target.transfer(list(range(40)), source))
    await asyncio.sleep(0)
    move.cancel()
    with pytest.raises(asyncio.CancelledError):
        await move
    assert (await source.warm_prefix(list(range(40)))).tokens == 0
    target.crash("gone")
    with pytest.raises(EngineUnavailable, match="gone"):
        await source.transfer(list(range(32)), target)
    with pytest.raises(UnsupportedByEngine):
        await BasicEngine().transfer([1], source)
