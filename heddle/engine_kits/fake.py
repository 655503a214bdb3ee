"""Instant nonsense, for tests."""

from __future__ import annotations

from heddle.config import EngineConfig
from heddle.coordinator.assembly import EngineKit
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer


def fake_kit(engine: EngineConfig) -> EngineKit:
    """An engine without a model."""
    model = FakeModel(vocabulary=256, end_of_turn_id=TURN_END, context_tokens=engine.context_tokens)
    return EngineKit(FakeLauncher(model=model), ByteTokenizer(), FakeEngine.capabilities, "fake")
