"""Pauses, flushes and new weights, against real SGLang and against the mock: the same tests."""

from __future__ import annotations

import pytest
from sglang_servers import Server
from sglang_steps import generate, prompt, request, start

from heddle.agent.ports import Generation
from heddle.engines.sglang.adapter import SGLangEngine
from heddle.errors import EngineInterrupted, EngineRejected
from heddle.types import FinishReason, PauseMode

pytestmark = pytest.mark.timeout(900)  # the first test installs and starts a real server


async def test_a_pause_that_aborts_interrupts_and_holds_newcomers(
    engine: SGLangEngine, server: Server
) -> None:
    """An interruption is no failure: the tokens so far count. The server is well meanwhile."""
    running = start(engine, request(prompt(10), 3000))
    await running.sampled(5)
    await engine.pause(PauseMode.ABORT)
    with pytest.raises(EngineInterrupted):
        await running.result()
    assert len(running.token_ids) >= 5
    held = start(engine, request(prompt(10, 1), 3))
    given_up = start(engine, request(prompt(10, 2), 3))
    await engine.health()
    await engine.flush_cache()
    await engine.abort(given_up.request.request_id)
    assert (await given_up.result()).finish_reason is FinishReason.ABORT
    assert not held.task.done()
    await engine.resume()
    assert len((await held.result()).token_ids) == 3
    await engine.health()


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_a_pause_changes_nothing_of_what_is_sampled(engine: SGLangEngine, mode: PauseMode) -> None:
    """Retracted generations leave nothing that could not be flushed; those in place do."""
    alone = await generate(engine, request(prompt(30, 6), 600))
    await engine.flush_cache()
    running = start(engine, request(prompt(30, 6), 600))
    await running.sampled(10)
    await engine.pause(mode)
    if mode is PauseMode.RETRACT:
        await engine.flush_cache()
    else:
        with pytest.raises(EngineRejected):
            await engine.flush_cache()
    await engine.resume()
    result = await running.result()
    assert list(result.token_ids) == list(alone.token_ids)
    assert result.retractions == (mode is PauseMode.RETRACT)


async def test_the_cache_is_not_flushed_under_a_running_generation(engine: SGLangEngine) -> None:
    """The server refuses, and goes on."""
    running = start(engine, request(prompt(10), 3000))
    await running.sampled(2)
    with pytest.raises(EngineRejected):
        await engine.flush_cache()
    await engine.abort(running.request.request_id)


async def test_new_weights_have_a_version_and_no_old_prefix(engine: SGLangEngine, server: Server) -> None:
    """They sample other tokens; a prompt that the old ones cached is computed anew."""
    kind = server.kind
    old = await generate(engine, request(prompt(50, 7), 20))
    await update(engine, str(kind.other), 1, PauseMode.ABORT)
    new = await generate(engine, request(prompt(50, 7), 20))
    assert set(new.weight_versions) == {1}
    assert new.cached_tokens == 0
    assert list(new.token_ids) != list(old.token_ids)
    with pytest.raises(EngineRejected):
        await engine.update_weights(str(kind.model / "nothing"), 7)
    unharmed = await generate(engine, request(prompt(50, 7), 20))
    assert list(unharmed.token_ids) == list(new.token_ids)
    assert set(unharmed.weight_versions) == {1}
    await update(engine, str(kind.model), 2, PauseMode.ABORT)
    assert list((await generate(engine, request(prompt(50, 7), 20))).token_ids) == list(old.token_ids)


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_each_token_knows_its_weights(engine: SGLangEngine, server: Server, mode: PauseMode) -> None:
    """A generation that lives through an update has tokens of both."""
    before = engine.weight_version
    running = start(engine, request(prompt(10, 8), 600))
    await running.sampled(10)
    await update(engine, str(server.kind.other), before + 1, mode)
    result = await running.result()
    assert list(result.weight_versions) == sorted(result.weight_versions)
    assert set(result.weight_versions) == {before, before + 1}
    assert len(result.weight_versions) == 600
    assert result.weight_version == before + 1
    await update(engine, str(server.kind.model), before + 2, PauseMode.ABORT)


async def test_another_adapter_learns_of_new_weights(engine: SGLangEngine, server: Server) -> None:
    """From the next answer that it gets; a trainer may update behind its back."""
    other = await SGLangEngine.connect(server.url)
    version = engine.weight_version + 1
    await update(engine, str(server.kind.model), version, PauseMode.ABORT)
    generation: Generation = await generate(other, request(prompt(10), 2))
    assert generation.weight_version == version
    assert other.weight_version == version
    await other.close()


async def update(engine: SGLangEngine, path: str, version: int, mode: PauseMode) -> None:
    """The whole exchange of weights."""
    await engine.pause(mode)
    await engine.update_weights(path, version)
    if mode is not PauseMode.IN_PLACE:
        await engine.flush_cache()
    await engine.resume()
    assert engine.weight_version == version
