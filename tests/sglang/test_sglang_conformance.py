"""The adapter against real SGLang and against the mock: the same tests, the same outcomes."""

from __future__ import annotations

import asyncio
import math

import pytest
from sglang_servers import KV_TOKENS, SLOTS, Server
from sglang_steps import DEADLINE_S, generate, idle, prompt, request, start, until

from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings
from heddle.errors import (
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    UnsupportedByEngine,
)
from heddle.types import FinishReason

pytestmark = pytest.mark.timeout(900)  # the first test installs and starts a real server

URGENT, MIDDLING, IDLE = 1e6, 100.0, 0.0
"""Ranks, far enough apart to be levels."""


async def test_what_the_server_says_of_itself(engine: SGLangEngine) -> None:
    """Capabilities follow from its arguments."""
    assert engine.facts.version == "0.5.23"
    assert engine.facts.slots == SLOTS
    assert engine.facts.max_total_num_tokens == KV_TOKENS
    assert engine.facts.max_req_input_len == KV_TOKENS - 6
    can = engine.capabilities
    able = (can.native_priority, can.sessions, can.pause, can.weight_update, can.online_slots)
    assert all(able)
    assert not can.json_schema
    assert not can.kv_transfer


async def test_a_generation_streams_every_token_once_with_its_logprob(engine: SGLangEngine) -> None:
    """And is the same again, whether or not its prompt is cached."""
    asked = request(prompt(20), 30)
    running = start(engine, asked)
    generation = await running.result()
    assert running.token_ids == generation.token_ids
    assert running.logprobs == generation.logprobs
    assert len(generation.token_ids) == len(generation.logprobs) == 30
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in generation.logprobs)
    assert generation.finish_reason is FinishReason.LENGTH
    assert (generation.prompt_tokens, generation.cached_tokens) == (20, 0)
    assert generation.weight_versions == [engine.weight_version] * 30
    again = await generate(engine, request(prompt(20), 30))
    assert again.token_ids == generation.token_ids
    assert again.cached_tokens == 19
    assert again.cache_sources is not None
    assert again.cache_sources.device == 19


async def test_a_generation_goes_on_from_its_partial_output(engine: SGLangEngine) -> None:
    """Prompt and output of an interrupted one are the prompt of the next, and are cached."""
    whole = await generate(engine, request(prompt(40, 1), 30))
    first = await generate(engine, request(prompt(40, 1), 12))
    rest = await generate(engine, request([*prompt(40, 1), *first.token_ids], 18))
    assert [*first.token_ids, *rest.token_ids] == list(whole.token_ids)
    assert rest.cached_tokens >= 40 + 12 - 2


async def test_an_end_id_ends_a_generation_and_is_its_last(server: Server) -> None:
    """Also one that the model's configuration does not know; a replayed length never samples it."""
    async with asyncio.timeout(DEADLINE_S):
        free = await SGLangEngine.connect(server.url)
        tokens = (await generate(free, request(prompt(10, 2), 12))).token_ids
        await free.close()
        end_id = tokens[5]
        bound = await SGLangEngine.connect(server.url, SGLangSettings(end_ids=(end_id,)))
        stopped = await generate(bound, request(prompt(10, 2), 12, ignore_end=False))
        replayed = await generate(bound, request(prompt(10, 2), 12))
        await bound.close()
    assert stopped.finish_reason is FinishReason.STOP
    assert list(stopped.token_ids) == list(tokens[: tokens.index(end_id) + 1])
    assert len(replayed.token_ids) == 12
    assert end_id not in replayed.token_ids


async def test_what_a_server_refuses_is_rejected_by_its_words(engine: SGLangEngine) -> None:
    """Too long a prompt, more than the context, a grammar; nothing of it harms the server."""
    with pytest.raises(EngineRejected, match="context length"):
        await generate(engine, request(prompt(KV_TOKENS + 1), 1))
    with pytest.raises(EngineRejected, match="context length"):
        await generate(engine, request(prompt(KV_TOKENS - 100), 200))
    with pytest.raises(UnsupportedByEngine):
        await generate(engine, request(prompt(4), 4, json_schema={"type": "object"}))
    assert len((await generate(engine, request(prompt(4), 4))).token_ids) == 4


async def test_a_prefix_is_warmed_without_sampling(engine: SGLangEngine) -> None:
    """It tells what was there before; a generation then finds all but the last token."""
    assert (await engine.warm_prefix(prompt(300, 3))).tokens == 0
    warm = await engine.warm_prefix(prompt(300, 3))
    assert warm.tokens == 299
    assert warm.sources is not None
    assert (warm.sources.device, warm.sources.host, warm.sources.storage) == (299, 0, 0)
    assert (await generate(engine, request(prompt(300, 3), 2))).cached_tokens == 299


# ------------------------------------------------------------------------------------------- aborts


async def test_an_abort_of_a_running_generation_keeps_what_it_has(
    engine: SGLangEngine, server: Server
) -> None:
    """Its slot is free when ``abort`` returns; an unknown id is a no-op."""
    running = start(engine, request(prompt(10), 3000))
    await running.sampled(5)
    await engine.abort("nobody")
    await engine.abort(running.request.request_id)
    assert running.task.done()
    generation = await running.result()
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == running.token_ids
    assert 5 <= len(generation.token_ids) < 3000
    await idle(server.url)


async def test_an_abort_of_a_queued_generation_gives_nothing(engine: SGLangEngine, server: Server) -> None:
    """Those that run go on."""
    runners = [start(engine, request(prompt(10, seed), 3000)) for seed in range(SLOTS)]
    for runner in runners:
        await runner.sampled(2)
    queued = start(engine, request(prompt(10, 9), 5))
    await until(lambda load: load["num_waiting_reqs"] == 1, server.url)
    await engine.abort(queued.request.request_id)
    generation = await queued.result()
    assert (generation.finish_reason, list(generation.token_ids)) == (FinishReason.ABORT, [])
    assert not any(runner.task.done() for runner in runners)
    for runner in runners:
        await engine.abort(runner.request.request_id)


async def test_an_abort_in_prefill_drops_the_prompt(engine: SGLangEngine, server: Server) -> None:
    """Between two chunks; the server computes the rest for nobody."""
    tokens = KV_TOKENS - 1000
    before = (await engine.loads())[0].total_prefill_uncached_tokens
    long = start(engine, request(prompt(tokens, 4), 5))
    await until(lambda load: load["total_prefill_uncached_tokens"] > before, server.url)
    await engine.abort(long.request.request_id)
    generation = await long.result()
    assert (generation.finish_reason, list(generation.token_ids)) == (FinishReason.ABORT, [])
    await idle(server.url)
    assert (await engine.loads())[0].total_prefill_uncached_tokens - before < tokens


async def test_a_cancelled_generation_leaves_a_free_slot(engine: SGLangEngine, server: Server) -> None:
    """When the cancellation comes out, the server has let go."""
    running = start(engine, request(prompt(10), 3000))
    await running.sampled(3)
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.result()
    load = await engine.load()
    assert load.waiting == 0
    await idle(server.url)


async def test_a_deadline_ends_a_generation(engine: SGLangEngine, server: Server) -> None:
    """The whole by its own deadline; the first token by another, in the queue too."""
    with pytest.raises(EngineTimeout, match="not done after 1 s"):
        await generate(engine, request(prompt(10), 7000, deadline_s=1.0))
    runners = [start(engine, request(prompt(10, seed), 3000, priority=URGENT)) for seed in range(SLOTS)]
    for runner in runners:
        await runner.sampled(1)
    with pytest.raises(EngineTimeout, match=r"no token for 0\.5 s \(after 0 tokens\)"):
        await generate(engine, request(prompt(10, 9), 5, first_token_deadline_s=0.5))
    for runner in runners:
        await engine.abort(runner.request.request_id)
    await idle(server.url)


# ------------------------------------------------------------------------------------------ priority


async def test_the_queue_is_served_by_priority(engine: SGLangEngine, server: Server) -> None:
    """Whoever came first, the higher rank goes first; equal ranks by arrival."""
    blockers = [start(engine, request(prompt(10, seed), 3000, priority=URGENT)) for seed in range(SLOTS)]
    for blocker in blockers:
        await blocker.sampled(1)
    served: list[str] = []
    waiting = []
    for number, (name, rank) in enumerate([("low", 1.0), ("mid", 30.0), ("high", 900.0), ("mid 2", 30.0)]):
        asked = request(prompt(10, 10 + number), 4, priority=rank)
        runner = start(engine, asked)
        runner.task.add_done_callback(lambda _, name=name: served.append(name))  # type: ignore[misc]
        waiting.append(runner)
        await until(lambda load, n=number: load["num_waiting_reqs"] == n + 1, server.url)  # type: ignore[misc]
    await engine.set_slots(1)
    for blocker in blockers:
        await engine.abort(blocker.request.request_id)
    for runner in waiting:
        await runner.result()
    await engine.set_slots(SLOTS)
    assert served == ["high", "mid", "mid 2", "low"]


async def test_a_higher_priority_takes_a_slot_and_nothing_is_lost(
    engine: SGLangEngine, server: Server
) -> None:
    """The victim waits inside its call, and samples what it would have sampled alone."""
    alone = [await generate(engine, request(prompt(30, seed), 800)) for seed in range(SLOTS)]
    await engine.flush_cache()
    victims = [start(engine, request(prompt(30, seed), 800)) for seed in range(SLOTS)]
    for victim in victims:
        await victim.sampled(20)
    urgent = await generate(engine, request(prompt(30, 9), 5, priority=MIDDLING))
    results = [await victim.result() for victim in victims]
    assert len(urgent.token_ids) == 5
    assert sorted(result.retractions for result in results) == [0, 1]
    for result, undisturbed in zip(results, alone, strict=True):
        assert list(result.token_ids) == list(undisturbed.token_ids)
        assert len(result.logprobs) == 800


async def test_an_equal_priority_takes_no_slot(engine: SGLangEngine, server: Server) -> None:
    """Levels, not ranks, are compared: 40 and 60 expected tokens are one level."""
    runners = [start(engine, request(prompt(10, seed), 150, priority=40.0)) for seed in range(SLOTS)]
    for runner in runners:
        await runner.sampled(5)
    late = await generate(engine, request(prompt(10, 9), 3, priority=60.0))
    assert len(late.token_ids) == 3
    assert [(await runner.result()).retractions for runner in runners] == [0] * SLOTS


# -------------------------------------------------------------------------------- slots and sessions


async def test_slots_change_online(engine: SGLangEngine, server: Server) -> None:
    """With one slot the second generation waits; more than the server was started with are refused."""
    await engine.set_slots(1)
    first = start(engine, request(prompt(10), 3000))
    await first.sampled(2)
    second = start(engine, request(prompt(10, 1), 3000))
    await until(lambda load: load["num_waiting_reqs"] == 1, server.url)
    await engine.set_slots(SLOTS)
    await second.sampled(2)
    for slots in (0, SLOTS + 1):
        with pytest.raises(EngineRejected):
            await engine.set_slots(slots)
    await engine.abort(first.request.request_id)
    await engine.abort(second.request.request_id)


async def test_a_session_keeps_its_prefix_until_it_is_closed(engine: SGLangEngine) -> None:
    """Under pressure others go first; afterwards it is one of them."""

    async def cached_after_pressure(seed: int) -> int:
        for i in range(5):
            await generate(engine, request(prompt(KV_TOKENS // 4, 20 + 5 * seed + i), 2))
        return (await generate(engine, request(prompt(1000, 5), 2))).cached_tokens

    await generate(engine, request(prompt(1000, 5), 2, session_id="episode"))
    assert await cached_after_pressure(0) >= 999
    await engine.close_session("episode")
    await engine.close_session("nobody")
    assert await cached_after_pressure(1) < 999


# -------------------------------------------------------------------------------------------- reports


async def test_loads_tell_what_runs_and_how_long_steps_take(engine: SGLangEngine, server: Server) -> None:
    """Moments of decoding steps grow; a line of step time over batch size follows from their differences."""
    first = (await engine.loads())[0].decode_moments or [0.0] * 6
    runners = [start(engine, request(prompt(10, seed), 3000)) for seed in range(SLOTS)]
    for runner in runners:
        await runner.sampled(40)
    await until(lambda load: load["num_running_reqs"] == SLOTS, server.url)
    load = await engine.load()
    assert load.running == SLOTS
    assert load.kv_capacity_tokens == KV_TOKENS
    for runner in runners:
        await engine.abort(runner.request.request_id)
    await idle(server.url)
    last = (await engine.loads())[0].decode_moments
    assert last is not None
    steps, batches, micros, squares, products, tokens = (b - a for a, b in zip(first, last, strict=True))
    assert steps > 0
    assert micros > 0
    assert steps <= batches <= SLOTS * steps
    assert batches <= squares <= SLOTS * batches
    assert micros <= products <= SLOTS * micros
    assert tokens >= batches > 40


async def test_health_is_asked_of_the_server(engine: SGLangEngine) -> None:
    """And says nothing where all is well."""
    await engine.health()


# ------------------------------------------------------------------------------------------------ ends


async def test_a_stop_waits_for_what_runs(own_server: Server) -> None:
    """SIGTERM lets a generation finish; then the server is gone and says so."""
    engine = await SGLangEngine.connect(own_server.url)
    running = start(engine, request(prompt(10), 300))
    await running.sampled(5)
    own_server.terminate()
    assert len((await running.result()).token_ids) == 300
    await asyncio.to_thread(own_server.process.wait, DEADLINE_S)
    with pytest.raises(EngineUnavailable):
        await engine.health()
    with pytest.raises(EngineUnavailable):
        await generate(engine, request(prompt(10), 3))
    await engine.close()


async def test_a_crash_breaks_generations_with_what_they_have(own_server: Server) -> None:
    """A token id beyond the vocabulary kills a server that does not tokenise; the adapter refuses one."""
    engine = await SGLangEngine.connect(own_server.url)
    running = start(engine, request(prompt(10), 7000))
    await running.sampled(5)
    careful = await SGLangEngine.connect(own_server.url, SGLangSettings(vocabulary=1024))
    with pytest.raises(EngineRejected, match="1024"):
        await generate(careful, request([5, 1024], 3))
    with pytest.raises(EngineUnavailable):
        await generate(engine, request([5, 50_000], 3))
    with pytest.raises(EngineUnavailable):
        await running.result()
    assert len(running.token_ids) >= 5
    assert await asyncio.to_thread(own_server.process.wait, DEADLINE_S) != 0
    await engine.close()
    await careful.close()
