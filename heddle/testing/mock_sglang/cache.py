"""A prefix cache in pages: what is found again, what is pinned, what is evicted, and where the rest went.

A page is known by a hash over itself, everything before it and the request's namespace. A page that a running
request uses is locked. Evicted is the least recently used page that nobody uses and no other builds on, those
of open sessions last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heddle.testing.mock_sglang.store import SharedStore


@dataclass(slots=True)
class _Page:
    key: int
    parent: int | None
    children: int = 0
    locks: int = 0
    sessions: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens of a prompt that need not be computed, by where they were found."""

    device: int
    host: int
    storage: int

    @property
    def tokens(self) -> int:
        return self.device + self.host + self.storage


class PrefixCache:
    """The KV pool of a server: ``capacity`` tokens for pages and for what running requests hold besides."""

    def __init__(
        self, *, capacity: int, page_size: int, host_tokens: int = 0, store: SharedStore | None = None
    ) -> None:
        self.page_size = page_size
        self._capacity = capacity
        self._store = store
        self._pages: OrderedDict[int, _Page] = OrderedDict()
        """Least recently used first."""
        self._host: OrderedDict[int, None] = OrderedDict()
        self._host_pages = host_tokens // page_size
        self._loose = 0
        """Tokens of running requests that are in no page."""
        self._locked = 0
        """Pages."""

    @property
    def used(self) -> int:
        """Tokens that running requests hold."""
        return self._loose + self._locked * self.page_size

    @property
    def sessions(self) -> frozenset[str]:
        """Those whose prefixes are kept longest."""
        return frozenset(session for page in self._pages.values() for session in page.sessions)

    @property
    def free(self) -> int:
        """Tokens that can be had at once or by eviction."""
        return self._capacity - self.used

    def match(self, token_ids: Sequence[int], namespace: str) -> Match:
        """How much of a prompt is there. The last token is always computed."""
        counts = {"device": 0, "host": 0, "storage": 0}
        for key in self._keys(token_ids[: len(token_ids) - 1], namespace):
            tier = self._tier(key)
            if tier is None:
                break
            counts[tier] += self.page_size
        return Match(**counts)

    def lock(self, token_ids: Sequence[int], tokens: int, namespace: str) -> list[int]:
        """Pin the first ``tokens`` of a prompt, fetched to the device where they were not.

        Returns the pages, for ``unlock``.
        """
        return self._pin(token_ids[:tokens], namespace)

    def hold(self, tokens: int) -> bool:
        """Take room for tokens in no page; False where there is none."""
        if tokens > self.free:
            return False
        self._loose += tokens
        self._shrink()
        return True

    def release(self, tokens: int) -> None:
        """Give back what ``hold`` took."""
        self._loose -= tokens

    def keep(self, token_ids: Sequence[int], namespace: str, held: int, pages: list[int]) -> list[int]:
        """Turn computed tokens into pages: ``held`` of them were loose. Returns all pages, pinned.

        What does not fill a page stays loose.
        """
        whole = len(token_ids) - len(token_ids) % self.page_size
        fresh = whole - len(pages) * self.page_size
        self._loose -= max(0, min(held, fresh))
        pinned = self._pin(token_ids[:whole], namespace)
        self.unlock(pages)
        return pinned

    def unlock(self, pages: list[int]) -> None:
        """Nobody needs these pages for this request any more; they stay until room is needed."""
        for key in pages:
            page = self._pages[key]
            page.locks -= 1
            self._locked -= page.locks == 0

    def write_through(self, pages: list[int]) -> None:
        """Copy to the shared storage."""
        if self._store is not None:
            for key in pages:
                self._store.add(key)

    def retain(self, pages: list[int], session: str) -> None:
        """Evict these pages after all that belong to no session."""
        for key in pages:
            self._pages[key].sessions.add(session)

    def close_session(self, session: str) -> None:
        """Its pages are worth no more than others."""
        for page in self._pages.values():
            page.sessions.discard(session)

    def flush(self) -> None:
        """Forget everything but the shared storage. Nothing may be pinned."""
        self._pages.clear()
        self._host.clear()

    # ---------------------------------------------------------------------------------- internals

    def _keys(self, token_ids: Sequence[int], namespace: str) -> Iterator[int]:
        key = hash(namespace)
        size = self.page_size
        for start in range(0, len(token_ids) - size + 1, size):
            key = hash((key, *token_ids[start : start + size]))
            yield key

    def _tier(self, key: int) -> str | None:
        if key in self._pages:
            return "device"
        if key in self._host:
            return "host"
        return "storage" if self._store is not None and key in self._store else None

    def _pin(self, token_ids: Sequence[int], namespace: str) -> list[int]:
        pages: list[int] = []
        parent: int | None = None
        for key in self._keys(token_ids, namespace):
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = _Page(key, parent)
                self._host.pop(key, None)
                if parent is not None:
                    self._pages[parent].children += 1
            self._locked += page.locks == 0
            page.locks += 1
            pages.append(key)
            parent = key
        for key in reversed(pages):  # the end of a prefix goes before its beginning
            self._pages.move_to_end(key)
        self._shrink()
        return pages

    def _shrink(self) -> None:
        """Evict until everything fits; what is pinned always does."""
        while self._loose + len(self._pages) * self.page_size > self._capacity:
            victim = self._victim(spare_sessions=True) or self._victim(spare_sessions=False)
            if victim is None:
                return
            self._evict(victim)

    def _victim(self, *, spare_sessions: bool) -> _Page | None:
        for page in self._pages.values():
            if page.locks == 0 and page.children == 0 and not (spare_sessions and page.sessions):
                return page
        return None

    def _evict(self, page: _Page) -> None:
        del self._pages[page.key]
        if page.parent is not None and page.parent in self._pages:
            self._pages[page.parent].children -= 1
        if self._host_pages:
            self._host[page.key] = None
            while len(self._host) > self._host_pages:
                self._host.popitem(last=False)
