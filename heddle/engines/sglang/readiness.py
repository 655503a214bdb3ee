"""When a server may be sent work: it says that it is ready, and is what was asked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.facts import ServerFacts
from heddle.errors import ConfigError, EngineError

POLL_S = 0.5
PROBE_TIMEOUT_S = 25.0
"""Servers without ``/ready`` generate a token to answer ``/health_generate``; that takes 1 to 20 s."""

RESERVED_TOKENS = 8
"""A server's longest prompt is this much shorter than its context, or a little less."""


async def await_ready(client: SGLangClient) -> None:
    """Return when the server says that it is ready. Bounded by whoever calls."""
    while True:
        with suppress(EngineError):  # not listening yet, or loading its weights
            await client.get("/ready", "/health_generate", timeout_s=PROBE_TIMEOUT_S)
            return
        await asyncio.sleep(POLL_S)


def check_facts(facts: ServerFacts, tp_degree: int, context_tokens: int) -> None:
    """Raises ``ConfigError`` where the server is not what Heddle counts on."""
    if facts.tp_size != tp_degree:
        raise ConfigError(f"the server has tensor-parallel degree {facts.tp_size}, not {tp_degree}")
    longest = facts.max_req_input_len
    if longest is not None and longest + RESERVED_TOKENS < context_tokens:
        room = longest + RESERVED_TOKENS
        raise ConfigError(f"engine.context_tokens: the server has room for {room}, not {context_tokens}")
