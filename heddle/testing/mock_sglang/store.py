"""Storage of KV pages that several servers share."""

from __future__ import annotations


class SharedStore:
    """Which pages were ever written; a page is known by a hash over itself and everything before it."""

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: int) -> bool:
        return page in self._pages

    def add(self, page: int) -> None:
        self._pages.add(page)

    def clear(self) -> None:
        self._pages.clear()
