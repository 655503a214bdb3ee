"""Errors, named by the boundary that was crossed.

    HeddleError
    |- InvalidRequest       a caller sent something that cannot be accepted; names the field
    |- NotFound             a caller named something that does not exist
    |- Conflict             the request is well formed but contradicts the present state
    |- ConfigError          Heddle's own configuration or environment is unusable
    |- EngineError          an engine failed a request
    |  |- EngineUnavailable     it could not be reached or died; nothing says what it computed
    |  |- EngineTimeout         it gave no token before the deadline
    |  |- EngineRejected        it refused the request (too long, malformed): retrying cannot help
    |  |- EngineInterrupted     it gave the slot to another, or was told to stop: no failure, ask again
    |  `- UnsupportedByEngine   it lacks the capability
    |- ToolBackendError     the tool infrastructure failed (never: the model's code failed)
    |- EnvironmentFault     an environment raised; the trajectory that met it fails as data
    `- StoreError           the journal could not be written or read

Adapters translate at the edge with ``from exc``. A failing trajectory is data, not an exception: only
infrastructure raises.
"""

from __future__ import annotations


class HeddleError(Exception):
    """Base of every error that Heddle raises on purpose."""


class InvalidRequest(HeddleError):
    """A request that cannot be accepted.

    ``path`` names the offending field in the request, dotted with indices (``prompts[3].task``).
    """

    def __init__(self, message: str, *, path: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.code = code


class NotFound(HeddleError):
    """Something was named that does not exist."""


class Conflict(HeddleError):
    """A well-formed request that contradicts the present state."""


class ConfigError(HeddleError):
    """Heddle's configuration or its surroundings are unusable; the message says how to mend it."""


class EngineError(HeddleError):
    """An engine failed a request."""


class EngineUnavailable(EngineError):
    """The engine could not be reached, or died while it worked."""


class EngineTimeout(EngineError):
    """The engine gave no token before the deadline."""


class EngineRejected(EngineError):
    """The engine refused the request as such; the same request would be refused again."""


class EngineInterrupted(EngineError):
    """The engine ended the request on purpose: for one of a higher priority, for lack of room, or because
    an operator told it to. What was sampled is valid, and the same request may be sent again."""


class UnsupportedByEngine(EngineError):
    """The engine lacks this capability; its ``capabilities`` say so beforehand."""


class ToolBackendError(HeddleError):
    """The tool infrastructure failed, as opposed to the code that it ran."""


class ToolRefused(ToolBackendError):
    """The call was not delivered at all, and would not be if it were tried again."""


class EnvironmentFault(HeddleError):
    """An environment raised where it must not."""


class StoreError(HeddleError):
    """The store could not be written or read."""
