"""How fast prefixes travel between workers: what was expected at first, and what transfers show since.

The rate is context tokens by second, decaying sums of both, so that long transfers count for more and a link
that changes is followed. A transfer that was broken off tells only that it would have taken longer still: it
counts where that alone makes it slower than expected. Otherwise only transfers that are quicker than the
tools would ever be seen.
"""

from __future__ import annotations

from heddle.errors import ConfigError

PRIOR_TOKENS = 4096.0
"""Tokens that the first estimate counts for."""
MEMORY = 0.9
"""What is left of earlier transfers after each."""


class TransferRate:
    """A running estimate; pure."""

    def __init__(self, tokens_per_s: float | None = None) -> None:
        """``tokens_per_s`` is the first estimate; ``None`` where prefixes do not travel.

        Raises ``ConfigError`` for one that is not above 0.
        """
        if tokens_per_s is not None and not tokens_per_s > 0.0:
            raise ConfigError(f"prefixes travel at more than 0 tokens a second, got {tokens_per_s}")
        self._tokens = PRIOR_TOKENS
        self._seconds = None if tokens_per_s is None else PRIOR_TOKENS / tokens_per_s

    def tokens_per_s(self) -> float | None:
        """The estimate; ``None`` where prefixes do not travel."""
        return None if self._seconds is None else self._tokens / self._seconds

    def finished(self, tokens: int, seconds: float) -> None:
        """A context of so many tokens was brought over in this time."""
        if self._seconds is not None and tokens > 0 and seconds > 0.0:
            self._tokens = MEMORY * self._tokens + tokens
            self._seconds = MEMORY * self._seconds + seconds

    def broken_off(self, tokens: int, seconds: float) -> None:
        """After this time a context of so many tokens was not there yet."""
        if self._seconds is not None and seconds * self._tokens > tokens * self._seconds:
            self.finished(tokens, seconds)
