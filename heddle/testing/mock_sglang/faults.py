"""What goes wrong on purpose. Set ``mock.faults`` at any time; it holds from then on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MockFaults:
    """Each fault strikes every request that gets so far."""

    crash_after_tokens: int | None = None
    """The server dies as a request has sampled so many."""
    hang_after_tokens: int | None = None
    """No step is computed any more as a request has sampled so many; HTTP still answers."""
    disconnect_after_tokens: int | None = None
    """A stream's connection breaks; the request is aborted as if the client had left."""
    lose_token: int | None = None
    """The token of this number, from 0, is sampled but missing in a stream."""
    refuse_with: int | None = None
    """``POST /generate`` is answered with this status."""
    abort_with: int | None = None
    """Requests are accepted, and aborted by the scheduler with this status code."""
    ignore_aborts: bool = False
    """``POST /abort_request`` is answered and forgotten."""


SOUND = MockFaults()
