"""What an engine without a server's finer controls answers to them."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.agent.ports import Engine
from heddle.errors import UnsupportedByEngine
from heddle.types import PauseMode, PrefixTransfer, WeightCall


class BasicEngine:
    """Base of engines that can generate, and of whose ``capabilities`` the rest are false."""

    @property
    def weight_version(self) -> int:
        """See ``Engine.weight_version``."""
        return 0

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        """See ``Engine.transfer``."""
        raise UnsupportedByEngine("this engine cannot hand its KV cache to another")

    async def close_session(self, session_id: str) -> None:
        """See ``Engine.close_session``."""
        raise UnsupportedByEngine("this engine keeps no sessions")

    async def set_slots(self, slots: int) -> None:
        """See ``Engine.set_slots``."""
        raise UnsupportedByEngine("this engine has the slots that it was started with")

    async def pause(self, mode: PauseMode) -> None:
        """See ``Engine.pause``."""
        raise UnsupportedByEngine("this engine does not pause")

    async def resume(self) -> None:
        """See ``Engine.resume``: nothing pauses."""

    async def update_weights(self, path: str, version: int) -> None:
        """See ``Engine.update_weights``."""
        raise UnsupportedByEngine("this engine keeps the weights that it was started with")

    async def begin_push(self) -> None:
        """See ``Engine.begin_push``."""
        raise UnsupportedByEngine("this engine keeps the weights that it was started with")

    async def push_weights(self, call: WeightCall) -> None:
        """See ``Engine.push_weights``."""
        raise UnsupportedByEngine("this engine keeps the weights that it was started with")

    async def end_push(self, version: int) -> None:
        """See ``Engine.end_push``."""
        raise UnsupportedByEngine("this engine keeps the weights that it was started with")

    async def flush_cache(self) -> None:
        """See ``Engine.flush_cache``."""
        raise UnsupportedByEngine("this engine keeps the weights that it was started with")
