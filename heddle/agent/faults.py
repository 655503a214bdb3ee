"""Whose fault it is when an environment raises."""

from __future__ import annotations

from heddle.agent.link import Ending
from heddle.errors import ToolBackendError
from heddle.types import StopReason


def environment_ending(exc: Exception, stage: str) -> Ending:
    """Whose fault it is that an environment raised: the tool infrastructure's, or its own."""
    causes = exc.exceptions if isinstance(exc, ExceptionGroup) else (exc,)
    infra = next((c for c in causes if isinstance(c, ToolBackendError)), None)
    if infra is not None:
        return Ending(StopReason.TOOL_FAILED, str(infra), stage="tool")
    first = causes[0]
    return Ending(StopReason.TOOL_FAILED, f"{type(first).__name__}: {first}", stage=stage, data_fault=True)
