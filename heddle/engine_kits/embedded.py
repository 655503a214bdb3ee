"""The embedded engine, and the model that it runs."""

from __future__ import annotations

import asyncio

from heddle.config import EngineConfig
from heddle.coordinator.assembly import EngineKit
from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.embedded.model import ensure_model
from heddle.text.tokenizer import load_tokenizer

TRANSFER_TOKENS_PER_S = 3_000.0
"""Until transfers have shown it. What ``benchmarks/embedded_migration.py`` measures on two busy cores."""


async def embedded_kit(engine: EngineConfig) -> EngineKit:
    """Brings the model where it is not there yet. Raises ``ConfigError``."""
    model = await asyncio.to_thread(ensure_model, engine.model)
    tokenizer = await asyncio.to_thread(load_tokenizer, model)
    launcher = EmbeddedLauncher(
        model, context_tokens=engine.context_tokens, ready_timeout_s=engine.ready_within_s
    )
    name = f"{model.name}:{model.stat().st_size}"
    return EngineKit(
        launcher,
        tokenizer,
        EmbeddedEngine.capabilities,
        name,
        transfer_tokens_per_s=TRANSFER_TOKENS_PER_S,
    )
