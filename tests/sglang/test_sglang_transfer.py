"""``Engine.transfer`` between two mock servers: what is asked of them, and what comes of their answers."""

from __future__ import annotations

import asyncio

import pytest
from sglang_steps import prompt, request

from heddle.engines.fake import FakeEngine
from heddle.engines.sglang.adapter import SGLangEngine
from heddle.errors import EngineUnavailable, UnsupportedByEngine
from heddle.testing import MockSettings, MockSGLang, MockTiming, SharedStore

PAGE = 32


def settings(store: SharedStore | None, prefill_s_per_token: float = 0.0) -> MockSettings:
    timing = MockTiming(prefill_s_per_token=prefill_s_per_token)
    return MockSettings(
        page_size=PAGE, store=store, timing=timing, chunked_prefill_size=PAGE, enable_session_radix_cache=True
    )


async def test_the_target_takes_from_the_store_what_the_source_wrote() -> None:
    """Whole pages; the rest is computed; the next request finds all of it on the device."""
    store = SharedStore()
    async with MockSGLang(settings(store)) as one, MockSGLang(settings(store)) as other:
        home, away = await SGLangEngine.connect(one.url), await SGLangEngine.connect(other.url)
        first = await home.generate(request(prompt(200), 40), lambda chunk: None)
        context = [*prompt(200), *first.token_ids]
        transfer = await home.transfer(context, away, "trajectory")
        assert transfer.sources is not None
        stored = (len(context) - 1) // PAGE * PAGE
        assert (transfer.sources.storage, transfer.sources.device) == (stored, 0)
        assert transfer.moved_tokens + transfer.computed_tokens == len(context)
        following = await away.generate(request([*context, 7, 8], 4), lambda chunk: None)
        assert following.cache_sources is not None
        assert following.cache_sources.storage == 0
        assert following.cached_tokens >= stored
        await home.close()
        await away.close()


async def test_what_nobody_wrote_the_target_computes() -> None:
    """The move is worth no less to the trajectory: its tools hide it."""
    async with MockSGLang(settings(SharedStore())) as one, MockSGLang(settings(SharedStore())) as other:
        home, away = await SGLangEngine.connect(one.url), await SGLangEngine.connect(other.url)
        await home.warm_prefix(prompt(100))
        transfer = await home.transfer(prompt(100), away)
        assert (transfer.moved_tokens, transfer.computed_tokens) == (0, 100)
        await home.close()
        await away.close()


async def test_a_transfer_broken_off_leaves_the_target_idle() -> None:
    """Its request is aborted there before the cancellation comes out."""
    async with MockSGLang(settings(None)) as one, MockSGLang(settings(SharedStore(), 0.005)) as other:
        home, away = await SGLangEngine.connect(one.url), await SGLangEngine.connect(other.url)
        home.capabilities = away.capabilities
        move = asyncio.create_task(home.transfer(prompt(4000), away))
        async with asyncio.timeout(10):
            while not (await away.load()).kv_used_tokens:
                await asyncio.sleep(0.01)
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        assert (await away.load()).kv_used_tokens == 0
        await home.close()
        await away.close()


async def test_a_transfer_that_cannot_be_says_why() -> None:
    """No store at either end, an engine of another kind, a target that is gone."""
    async with MockSGLang(settings(SharedStore())) as one, MockSGLang(settings(None)) as other:
        home, away = await SGLangEngine.connect(one.url), await SGLangEngine.connect(other.url)
        with pytest.raises(UnsupportedByEngine, match="has no store of prefixes"):
            await home.transfer(prompt(64), away)
        for source, target in ((away, home), (home, FakeEngine(slots=1))):
            with pytest.raises(UnsupportedByEngine, match="shares no store of prefixes"):
                await source.transfer(prompt(64), target)
        away.capabilities = home.capabilities
        await away.close()
        with pytest.raises(EngineUnavailable):
            await home.transfer(prompt(64), away)
        await home.close()
