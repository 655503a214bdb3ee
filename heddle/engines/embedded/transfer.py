"""A prefix from one llama.cpp server to another: save its slot to a file, restore the file into a slot.

Only what lies in a slot can be saved, and a prefix may have been swapped out to the server's host memory. So
it is asked for first, as a generation of one token, for which the server takes the slot that has it or swaps
it in. On the other side a slot has to be found whose content may be overwritten: a generation from one token
makes the server choose one itself, and swap out what it held. Each server has one slot more than generations
may run, so that neither has to wait for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.engines.embedded.exchange import KvExchange
from heddle.errors import EngineRejected, EngineUnavailable
from heddle.types import PrefixTransfer

MAX_COMPUTED_TOKENS = 64
"""What the source may compute anew of the prefix before it is saved. If it lacks more, it lost the prefix to
others, and the target computes it just as well."""
_HEADER_BYTES = 1 << 16
"""Beside its tokens a saved slot has some ids and sizes."""


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """A prefix in a slot of a server."""

    slot: int
    cached_tokens: int
    """What was not computed for it now."""


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """What a server says that it wrote."""

    tokens: int
    nbytes: int


class SlotServer(Protocol):
    """A server whose slots can be saved and restored."""

    async def hold(self, token_ids: Sequence[int], *, lacking_at_most: int) -> HeldPrefix:
        """Get a prefix into a slot. Raises ``EngineRejected`` where more of it would have to be computed."""
        ...

    async def save_slot(self, slot: int, name: str) -> SavedSlot:
        """Write a slot to a file."""
        ...

    async def restore_slot(self, slot: int, name: str) -> int:
        """Read a slot from a file; returns its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class SlotExchange:
    """What the servers of one launcher share."""

    files: KvExchange
    token_bytes: int
    """KV of one token."""

    async def move(self, source: SlotServer, target: SlotServer, token_ids: Sequence[int]) -> PrefixTransfer:
        """Copy a prefix. Raises ``EngineRejected`` and ``EngineUnavailable``; then the target lacks it."""
        nbytes = len(token_ids) * self.token_bytes + _HEADER_BYTES
        with self.files.file(nbytes) as name:
            held = await source.hold(token_ids, lacking_at_most=MAX_COMPUTED_TOKENS)
            saved = await source.save_slot(held.slot, name)
            self._check(saved, len(token_ids), name)
            place = await target.hold(token_ids[-1:], lacking_at_most=1)
            restored = await target.restore_slot(place.slot, name)
            if restored != saved.tokens:
                raise EngineRejected(f"the target restored {restored} of {saved.tokens} tokens")
        return PrefixTransfer(moved_tokens=restored, nbytes=saved.nbytes)

    def _check(self, saved: SavedSlot, tokens: int, name: str) -> None:
        """A server calls it a success where nothing is written, and dies of a file that is cut short."""
        if saved.tokens != tokens:
            raise EngineUnavailable(f"the source saved {saved.tokens} of {tokens} tokens")
        try:
            size = (self.files.directory / name).stat().st_size
        except FileNotFoundError:
            size = 0
        if size != saved.nbytes or size < tokens:
            raise EngineUnavailable(f"the source wrote {size} of {saved.nbytes} bytes for {tokens} tokens")
