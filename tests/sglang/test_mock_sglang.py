"""The mock in a test's own process: what it can be told to do, and that it loses nothing whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_steps import Running, generate, idle, prompt, request, start, until

from heddle.agent.ports import Generation
from heddle.engines.sglang import adapter
from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.errors import (
    EngineError,
    EngineInterrupted,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    UnsupportedByEngine,
)
from heddle.planning.profile import DegreeProfile
from heddle.testing import MockFaults, MockSettings, MockSGLang, MockTiming, SharedStore
from heddle.types import CacheSources, FinishReason, PauseMode

DEFAULTS = MockSettings()
PLAIN = SGLangSettings()
PRIORITIES = MockSettings(
    enable_priority_scheduling=True,
    priority_scheduling_preemption_threshold=0,
    incremental_streaming_output=True,
    max_running_requests=2,
    timing=MockTiming(decode_s=(0.002,)),
)


@asynccontextmanager
async def mocked(
    settings: MockSettings = DEFAULTS, use: SGLangSettings = PLAIN
) -> AsyncIterator[tuple[MockSGLang, SGLangEngine]]:
    """A mock, and the adapter to it."""
    async with MockSGLang(settings) as mock:
        engine = await SGLangEngine.connect(mock.url, use)
        try:
            yield mock, engine
        finally:
            await engine.close()


# ------------------------------------------------------------------------------------- configuration


async def test_cumulative_and_incremental_streams_give_the_same() -> None:
    """The adapter does not need to know which a server sends."""
    results = []
    for incremental in (False, True):
        async with mocked(MockSettings(incremental_streaming_output=incremental)) as (_, engine):
            running = start(engine, request(prompt(10), 40))
            results.append((await running.result()).token_ids)
            assert running.token_ids == results[-1]
    assert results[0] == results[1]


async def test_prefixes_are_found_by_whole_pages() -> None:
    """And never the last token of a prompt."""
    async with mocked(MockSettings(page_size=16)) as (_, engine):
        await engine.warm_prefix(prompt(100))
        assert (await engine.warm_prefix(prompt(100))).tokens == 96
        assert (await engine.warm_prefix(prompt(96))).tokens == 80
        assert (await engine.warm_prefix(prompt(40))).tokens == 32


async def test_servers_share_a_store() -> None:
    """A prefix computed on one, its output included, is fetched by the other; then it is there."""
    settings = MockSettings(page_size=32, store=SharedStore())
    async with mocked(settings) as (_, first), mocked(settings) as (_, second):
        assert first.capabilities.kv_transfer
        generation = await generate(first, request(prompt(64), 65))
        whole = [*prompt(64), *generation.token_ids]
        fetched = await second.warm_prefix(whole)
        assert (fetched.tokens, fetched.sources) == (128, CacheSources(storage=128))
        again = await second.warm_prefix(whole)
        assert again.sources == CacheSources(device=128)


async def test_what_is_evicted_may_be_in_host_memory() -> None:
    """From where it comes back; the beginning of a prefix stays longest."""
    settings = MockSettings(max_total_tokens=1000, host_tokens=4000, page_size=10)
    async with mocked(settings) as (_, engine):
        await engine.warm_prefix(prompt(501))
        await engine.warm_prefix(prompt(901, 1))
        assert (await engine.warm_prefix(prompt(501))).sources == CacheSources(device=90, host=410)


async def test_a_full_queue_turns_the_least_urgent_away() -> None:
    """An interruption, not a failure: whoever asked may ask again."""
    async with mocked(replace(PRIORITIES, max_queued_requests=1), SGLangSettings(native_priority=True)) as (
        mock,
        engine,
    ):
        runners = []
        for seed in range(2):
            runners.append(start(engine, request(prompt(10, seed), 3000, priority=1e6)))
            await runners[-1].sampled(1)
        queued = start(engine, request(prompt(10, 3), 3, priority=10.0))
        await until(lambda load: load["num_waiting_reqs"] == 1, mock.url)
        with pytest.raises(EngineInterrupted, match="queue is full"):
            await generate(engine, request(prompt(10, 4), 3, priority=5.0))
        urgent = start(engine, request(prompt(10, 5), 3, priority=1000.0))
        with pytest.raises(EngineInterrupted, match="higher priority"):
            await queued.result()
        for runner in runners:
            await engine.abort(runner.request.request_id)
        assert len((await urgent.result()).token_ids) == 3


async def test_memory_preempts_nobody_and_its_lack_retracts() -> None:
    """A newcomer without room waits, however urgent; running ones that outgrow the pool take turns."""
    tight = replace(PRIORITIES, max_total_tokens=300)
    async with mocked(tight, SGLangSettings(native_priority=True)) as (mock, engine):
        alone = [await generate(engine, request(prompt(60, seed), 120)) for seed in range(2)]
        await engine.flush_cache()
        pair = [start(engine, request(prompt(60, seed), 120)) for seed in range(2)]
        await pair[0].sampled(1)
        urgent = await generate(engine, request(prompt(200, 7), 4, priority=1e6))
        assert len(urgent.token_ids) == 4
        results = [await runner.result() for runner in pair]
        assert [list(r.token_ids) for r in results] == [list(a.token_ids) for a in alone]
        assert sum(result.retractions for result in results) == mock.scheduler.tally.retracted > 0


async def test_a_mock_says_what_it_is_told_to() -> None:
    """A script instead of ids that look random; the end comes by itself after it."""
    async with mocked(MockSettings(script=lambda prompt_ids: [*prompt_ids, 9])) as (_, engine):
        generation = await generate(engine, request([5, 6, 7], 50, ignore_end=False))
    assert list(generation.token_ids) == [5, 6, 7, 9, 2]
    assert generation.finish_reason is FinishReason.STOP


async def test_a_key_keeps_others_out() -> None:
    """The adapter presents it."""
    async with mocked(MockSettings(api_key="secret"), SGLangSettings(api_key="secret")) as (mock, engine):
        assert len((await generate(engine, request(prompt(5), 2))).token_ids) == 2
        with pytest.raises(EngineUnavailable, match="401"):
            await SGLangEngine.connect(mock.url)


async def test_priorities_need_a_server_that_has_them() -> None:
    """Said before anything is generated."""
    with pytest.raises(UnsupportedByEngine):
        async with mocked(MockSettings(), SGLangSettings(native_priority=True)):
            pass


def test_a_pace_follows_from_a_profile() -> None:
    """Interpolated between measured batches, and faster by a factor."""
    degree = DegreeProfile.measured(2, [(1, 0.01), (3, 0.03)], prefill_tokens_per_s=1000.0)
    timing = MockTiming.from_profile(degree, batch=4, speed=10.0)
    assert [round(timing.decode(batch), 6) for batch in (1, 2, 3)] == [0.001, 0.002, 0.003]
    assert timing.decode(9) == timing.decode(4) >= 0.004
    assert timing.prefill_s_per_token == pytest.approx(0.0001)


# --------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("faults", "expected", "streamed"),
    [
        (MockFaults(crash_after_tokens=5), EngineUnavailable, 4),
        (MockFaults(disconnect_after_tokens=5), EngineUnavailable, 4),
        (MockFaults(lose_token=3), EngineUnavailable, 3),
        (MockFaults(refuse_with=503), EngineInterrupted, 0),
        (MockFaults(refuse_with=500), EngineUnavailable, 0),
        (MockFaults(refuse_with=400), EngineRejected, 0),
        (MockFaults(abort_with=503), EngineInterrupted, 0),
        (MockFaults(abort_with=500), EngineUnavailable, 0),
        (MockFaults(abort_with=400), EngineRejected, 0),
    ],
)
async def test_each_fault_is_an_error_of_its_kind(
    faults: MockFaults, expected: type[EngineError], streamed: int
) -> None:
    """What was sampled before it is kept, and nothing after it counts."""
    paced = MockSettings(incremental_streaming_output=True, timing=MockTiming(decode_s=(0.01,)))
    async with mocked(paced) as (mock, engine):
        mock.faults = faults
        running = start(engine, request(prompt(10), 20))
        with pytest.raises(expected):
            await running.result()
        assert streamed <= len(running.token_ids) <= streamed + 1


async def test_a_server_that_hangs_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the deadline between tokens; that it does not obey an abort either costs a bounded wait."""
    monkeypatch.setattr(adapter, "RELEASE_TIMEOUT_S", 0.3)
    async with mocked(replace(PRIORITIES)) as (mock, engine):
        mock.faults = MockFaults(hang_after_tokens=5)
        with pytest.raises(EngineTimeout, match=r"no token for 0\.2 s \(after 5 tokens\)"):
            await generate(engine, request(prompt(10), 20, first_token_deadline_s=0.2))
        await engine.health()


async def test_an_abort_that_is_not_obeyed_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed; the tokens so far are the result."""
    monkeypatch.setattr(adapter, "RELEASE_TIMEOUT_S", 0.3)
    async with mocked(PRIORITIES) as (mock, engine):
        mock.faults = MockFaults(ignore_aborts=True)
        running = start(engine, request(prompt(10), 3000))
        await running.sampled(5)
        await engine.abort(running.request.request_id)
        generation = await running.result()
        assert generation.finish_reason is FinishReason.ABORT
        assert list(generation.token_ids) == running.token_ids


async def test_closing_the_adapter_ends_its_generations() -> None:
    """The server notices that nobody listens, and frees the slot."""
    async with mocked(PRIORITIES) as (mock, engine):
        running = start(engine, request(prompt(10), 3000))
        await running.sampled(2)
        await engine.close()
        with pytest.raises(EngineUnavailable, match="closed"):
            await running.result()
        with pytest.raises(EngineUnavailable, match="closed"):
            await engine.load()
        await idle(mock.url)


async def test_generations_beyond_the_connections_wait_inside_their_deadlines() -> None:
    """Control requests have connections of their own, so an abort does not wait."""
    async with mocked(PRIORITIES, SGLangSettings(max_in_flight=1)) as (_, engine):
        first = start(engine, request(prompt(10), 3000))
        await first.sampled(2)
        with pytest.raises(EngineTimeout):
            await generate(engine, request(prompt(10, 1), 2, first_token_deadline_s=0.1))
        second = start(engine, request(prompt(10, 1), 2))
        await engine.abort(first.request.request_id)
        assert len((await second.result()).token_ids) == 2


async def test_a_graceful_stop_waits_for_what_runs() -> None:
    """As the process does on SIGTERM."""
    async with mocked(PRIORITIES) as (mock, engine):
        running = start(engine, request(prompt(10), 100))
        await running.sampled(2)
        await mock.stop(graceful=True)
        assert len((await running.result()).token_ids) == 100
        with pytest.raises(EngineUnavailable):
            await engine.health()


async def test_bodies_are_remembered() -> None:
    """For tests of whoever sends them."""
    async with MockSGLang() as mock, httpx.AsyncClient(base_url=mock.url, trust_env=False) as client:
        sent = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}, "session_id": "s"}
        await client.post("/generate", json=sent)
        assert list(mock.generate_bodies) == [sent]


# ------------------------------------------------------------------------------------------- whatever

Step = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 7)),
        st.tuples(st.just("abort"), st.integers(0, 7)),
        st.tuples(st.just("slots"), st.integers(1, 2)),
        st.tuples(st.sampled_from(["retract", "in_place", "go"]), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_whatever_happens_tokens_are_those_of_an_undisturbed_run(steps: list[Step]) -> None:
    """Whole or cut short by an abort, and in the end nothing holds memory."""
    asyncio.run(_disturb(steps))


async def _disturb(steps: list[Step]) -> None:
    tight = replace(PRIORITIES, max_total_tokens=400, timing=MockTiming(), page_size=4)
    async with mocked(tight, SGLangSettings(native_priority=True)) as (mock, engine):
        undisturbed = [await generate(engine, request(prompt(20, seed), 40)) for seed in range(8)]
        runs: list[tuple[int, Running]] = []
        for name, number in steps:
            if name == "start":
                asked = request(prompt(20, number), 40, priority=2.0**number)
                runs.append((number, start(engine, asked)))
            elif name == "abort" and number < len(runs):
                await engine.abort(runs[number][1].request.request_id)
            elif name == "slots":
                await engine.set_slots(number)
            elif name == "go":
                await engine.resume()
            elif name in ("retract", "in_place"):
                await engine.pause(PauseMode(name))
        await engine.resume()
        for seed, running in runs:
            _check(await running.result(), undisturbed[seed], running)
        await engine.flush_cache()
        assert (mock.cache.used, mock.cache.free) == (0, 400)


def _check(result: Generation, undisturbed: Generation, running: Running) -> None:
    got = list(result.token_ids)
    assert got == list(undisturbed.token_ids)[: len(got)] == running.token_ids
    assert list(result.logprobs) == list(undisturbed.logprobs)[: len(got)]
    assert result.finish_reason is FinishReason.ABORT or len(got) == 40
