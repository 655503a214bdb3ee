"""What an engine needs to run, from the configuration: the part of the composition root that knows engines.

Reading a configuration starts nothing: processes come with the first worker. Each kind of engine has a module
of its own, imported where it is chosen: none should wait for the libraries of another.
"""

from __future__ import annotations

from heddle.config import HeddleConfig
from heddle.coordinator.assembly import EngineKit


async def engine_kit(config: HeddleConfig) -> EngineKit:
    """The engine that the configuration names. Raises ``ConfigError``."""
    match config.engine.kind:
        case "fake":
            from heddle.engine_kits.fake import fake_kit

            return fake_kit(config.engine)
        case "sglang":
            from heddle.engine_kits.sglang import attached_kit, launched_kit

            attached = config.engine.sglang.workers
            return await (attached_kit(config.engine) if attached else launched_kit(config))
        case "embedded":
            from heddle.engine_kits.embedded import embedded_kit

            return await embedded_kit(config.engine)
