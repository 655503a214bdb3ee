"""The limits on calls and steps that end a trajectory from within."""

from __future__ import annotations

from heddle.types import Limits, StopReason


def limit_reached(limits: Limits, steps: int, tool_calls: int, invalid_in_a_row: int) -> StopReason | None:
    """The severest limit that is reached after so many steps and calls, if one is."""
    if invalid_in_a_row >= limits.max_invalid_tool_calls:
        return StopReason.PARSE_ERROR
    if tool_calls >= limits.max_tool_calls:
        return StopReason.MAX_TOOL_CALLS
    return StopReason.MAX_STEPS if steps >= limits.max_steps else None
