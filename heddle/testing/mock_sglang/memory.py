"""What requests hold in the KV pool, from their admission to their end."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.testing.mock_sglang.cache import PrefixCache
from heddle.testing.mock_sglang.requests import MockRequest


class RequestMemory:
    """``request.pages`` are pinned, ``request.held`` tokens are in no page yet."""

    def __init__(self, cache: PrefixCache, *, sessions: bool) -> None:
        self._cache = cache
        self._sessions = sessions

    def admit(self, request: MockRequest) -> bool:
        """Pin what is cached of its prompt and take room for the rest; False where there is none."""
        ids, namespace = request.all_ids, request.asked.namespace
        match = self._cache.match(ids, namespace)
        pages = self._cache.lock(ids, match.tokens, namespace)
        missing = len(ids) - match.tokens
        if not self._cache.hold(missing):
            self._cache.unlock(pages)
            return False
        request.pages, request.held, request.computed = pages, missing, match.tokens
        request.match = request.match or match
        return True

    def grow(self, running: Sequence[MockRequest]) -> bool:
        """Room for one token more of each; False where there is not enough for all."""
        if not self._cache.hold(len(running)):
            return False
        for request in running:
            request.held += 1
        return True

    def keep(self, request: MockRequest, ids: list[int]) -> None:
        """Make pages of what is computed; what does not fill one stays loose."""
        before = len(request.pages)
        request.pages = self._cache.keep(ids, request.asked.namespace, request.held, request.pages)
        fresh = (len(request.pages) - before) * self._cache.page_size
        request.held -= max(0, min(request.held, fresh))

    def remember(self, request: MockRequest) -> None:
        """It ends: all that was computed goes into the prefix cache, and to the shared storage."""
        ids = request.all_ids
        self.keep(request, ids[: len(ids) - 1] if request.output_ids else ids)
        if self._sessions and request.asked.session_id is not None and not request.to_abort:
            self._cache.retain(request.pages, request.asked.session_id)
        self._cache.write_through(request.pages)

    def release(self, request: MockRequest) -> None:
        """Give everything back; pages stay until room is needed."""
        self._cache.release(request.held)
        self._cache.unlock(request.pages)
        request.held, request.pages = 0, []
