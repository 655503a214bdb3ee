"""What the Tool Manager needs of a backend, and what a call can come to.

A backend runs one invocation and says what came of it. Failures of the *code* that it ran are results;
only failures of the infrastructure raise ``ToolBackendError``. Queueing, concurrency and fairness are the
manager's business: a backend may be called as often at once as the manager allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from heddle.agent.ports import ToolInvocation
from heddle.types import Json


class ToolOutcome(StrEnum):
    """What an invocation came to; every value but ``OK`` is an observation for the model, not an error."""

    OK = "ok"
    ERROR = "error"
    """The code ended with a non-zero exit code, or the handler refused its input."""
    TIMED_OUT = "timed_out"
    """The limit on wall-clock or processor time ended it."""
    MEMORY_EXCEEDED = "memory_exceeded"
    OUTPUT_EXCEEDED = "output_exceeded"
    """It flooded its output and was ended early."""
    KILLED = "killed"
    """A signal ended it."""
    INVALID = "invalid"
    """The payload could not be run at all; nothing was started."""


@dataclass(frozen=True, slots=True)
class BackendResult:
    """What came of one run. ``cold_start_s`` and ``run_s`` together are the time inside the backend."""

    output: str
    outcome: ToolOutcome
    cold_start_s: float
    """From the call to the first instruction of the code."""
    run_s: float
    """Everything after that, the clearing away included."""
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the code did what it was asked to."""
        return self.outcome is ToolOutcome.OK


class ToolBackend(Protocol):
    """One way to run tools. Methods raise ``ToolBackendError`` only (and ``CancelledError``)."""

    @property
    def name(self) -> str:
        """What ``ToolInvocation.backend`` calls it."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether a call may run again where nobody knows whether it ran: it changes nothing outside, or the
        backend itself tells a repetition by ``ToolInvocation.key``."""
        ...

    async def invoke(self, invocation: ToolInvocation, deadline: float) -> BackendResult:
        """Run it until ``deadline``, an instant of ``time.monotonic()``.

        Cancelling the call ends what was started: when the ``CancelledError`` comes out, nothing runs.
        """
        ...

    async def prewarm(self, n: int) -> None:
        """Make the next ``n`` calls start sooner, where the backend can; never more than a hint."""
        ...

    async def close(self) -> None:
        """End every run and release everything, in bounded time. A second call is a no-op."""
        ...
