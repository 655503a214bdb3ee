"""The output of a program: collected up to a hard bound, shown up to a soft one.

What is kept depends on the bytes alone, not on how they arrived, so the same output always gives the
same observation.
"""

from __future__ import annotations

FLOOD_FACTOR = 8
"""A program is ended once it has written this many times what the model is shown: up to there the end of
the output (a traceback, the final answer) can still be shown beside its beginning."""


class OutputBuffer:
    """Collects up to ``FLOOD_FACTOR * limit_bytes``; ``flooded`` says that there was more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._data = bytearray()
        self.flooded = False

    @property
    def room(self) -> int:
        """Bytes to ask for next: one more than is kept, to notice the flood."""
        return self._limit_bytes * FLOOD_FACTOR - len(self._data) + 1

    def add(self, chunk: bytes) -> None:
        """Keep what fits."""
        bound = self._limit_bytes * FLOOD_FACTOR
        self.flooded = self.flooded or len(self._data) + len(chunk) > bound
        self._data += chunk[: bound - len(self._data)]

    @property
    def omitted_bytes(self) -> int:
        """Of what was collected, how much ``text`` leaves out."""
        return max(0, len(self._data) - self._limit_bytes)

    def text(self) -> str:
        """Everything, or its head and tail around a marker; undecodable bytes become U+FFFD."""
        if not self.omitted_bytes:
            return self._data.decode("utf-8", "replace")
        head = self._limit_bytes // 2
        tail = self._limit_bytes - head
        omitted = "the rest" if self.flooded else f"{self.omitted_bytes} bytes"
        first = self._data[:head].decode("utf-8", "replace")
        last = self._data[len(self._data) - tail :].decode("utf-8", "replace")
        return f"{first}\n[... {omitted} omitted ...]\n{last}"
