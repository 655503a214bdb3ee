"""Tool times that a trace does not have, from a distribution that the caller names.

    constant:2.0                       every one
    exponential:mean=1.5
    lognormal:median=1.0,sigma=0.8     sigma is that of the logarithm
    recorded                           drawn from those that the same workload has, of the same tool where it
                                       has any

Recorded times are kept whichever is named, and what was drawn is said in the workload's notes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from heddle.errors import InvalidRequest
from heddle.simulate.options import MOST_SECONDS
from heddle.simulate.workload import Workload, WorkStep

OPTION = "--tool-times"
EXAMPLES = "constant:2.0, exponential:mean=1.5, lognormal:median=1.0,sigma=0.8 or recorded"
_STREAM = 0x746F6F6C
"""Keeps these draws apart from others of the same seed."""


class ToolTimesKind(StrEnum):
    """A family of distributions."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    RECORDED = "recorded"


_PARAMETERS: Mapping[ToolTimesKind, tuple[str, ...]] = {
    ToolTimesKind.CONSTANT: ("value",),
    ToolTimesKind.EXPONENTIAL: ("mean",),
    ToolTimesKind.LOGNORMAL: ("median", "sigma"),
    ToolTimesKind.RECORDED: (),
}


@dataclass(frozen=True, slots=True)
class ToolTimes:
    """A distribution of seconds."""

    kind: ToolTimesKind
    parameters: tuple[float, ...] = ()
    """In the order of their names in the text."""

    def __str__(self) -> str:
        pairs = zip(_PARAMETERS[self.kind], self.parameters, strict=True)
        return ":".join([self.kind, *([",".join(f"{k}={v:g}" for k, v in pairs)] if self.parameters else [])])


def parse_tool_times(text: str) -> ToolTimes:
    """The distribution that a text names. Raises ``InvalidRequest`` that shows how one is written."""
    name, _, rest = text.strip().partition(":")
    try:
        kind = ToolTimesKind(name)
    except ValueError as exc:
        raise InvalidRequest(f"{name!r} is no distribution; write {EXAMPLES}", path=OPTION) from exc
    names = _PARAMETERS[kind]
    parts = [part for part in rest.split(",") if part.strip()]
    if len(names) == len(parts) == 1 and "=" not in parts[0]:
        parts = [f"{names[0]}={parts[0]}"]
    given = dict(part.strip().partition("=")[::2] for part in parts)
    if set(given) != set(names) or len(given) != len(parts):
        wanted = " and ".join(names) or "no parameters"
        raise InvalidRequest(f"{kind} takes {wanted}, got {rest!r}; write {EXAMPLES}", path=OPTION)
    return ToolTimes(kind, tuple(_number(key, given[key]) for key in names))


def with_tool_times(workload: Workload, times: ToolTimes, seed: int) -> Workload:
    """The workload with every unknown tool time drawn; the same for the same seed.

    Raises ``InvalidRequest`` where ``recorded`` is named and nothing was.
    """
    unknown = sum(s.tool_seconds is None for t in workload.trajectories for s in t.steps)
    if not unknown:
        return workload
    generator = np.random.default_rng([_STREAM, seed])
    recorded = _Recorded.of(workload) if times.kind is ToolTimesKind.RECORDED else None

    def drawn(step: WorkStep) -> WorkStep:
        if step.tool_seconds is not None:
            return step
        seconds = _draw(times, generator) if recorded is None else recorded.draw(step.tool_names, generator)
        return replace(step, tool_seconds=seconds)

    trajectories = tuple(
        replace(trajectory, steps=tuple(drawn(step) for step in trajectory.steps))
        for trajectory in workload.trajectories
    )
    note = f"{unknown:,} tool times were not recorded and are drawn from {times}"
    return replace(workload, trajectories=trajectories, notes=(*workload.notes, note))


def without_tool_times(workload: Workload) -> Workload:
    """With the recorded times of all tools forgotten, so that they can be drawn; a note says so."""
    known = sum(
        bool(s.tool_names) and s.tool_seconds is not None for t in workload.trajectories for s in t.steps
    )
    if not known:
        return workload
    trajectories = tuple(
        replace(t, steps=tuple(replace(s, tool_seconds=None) if s.tool_names else s for s in t.steps))
        for t in workload.trajectories
    )
    note = f"{known:,} recorded tool times set aside"
    return replace(workload, trajectories=trajectories, notes=(*workload.notes, note))


def require_tool_times(workload: Workload) -> None:
    """Raises ``InvalidRequest`` that names the option where a tool time is unknown."""
    unknown = [step for t in workload.trajectories for step in t.steps if step.tool_seconds is None]
    if unknown:
        tools = sorted({name for step in unknown for name in step.tool_names})
        shown = ", ".join(tools[:3]) + (", ..." if len(tools) > 3 else "")
        raise InvalidRequest(
            f"{workload.name} lacks {len(unknown):,} tool times ({shown}); name a distribution: {EXAMPLES}",
            path=OPTION,
        )


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The times that a workload has."""

    by_tools: Mapping[tuple[str, ...], Sequence[float]]
    all: Sequence[float]

    @classmethod
    def of(cls, workload: Workload) -> _Recorded:
        by_tools: dict[tuple[str, ...], list[float]] = {}
        for trajectory in workload.trajectories:
            for step in trajectory.steps:
                if step.tool_names and step.tool_seconds is not None:
                    by_tools.setdefault(step.tool_names, []).append(step.tool_seconds)
        everything = [seconds for times in by_tools.values() for seconds in times]
        if not everything:
            raise InvalidRequest(f"{workload.name} has no recorded tool time to draw from", path=OPTION)
        return cls(by_tools, everything)

    def draw(self, tool_names: tuple[str, ...], generator: np.random.Generator) -> float:
        times = self.by_tools.get(tool_names, self.all)
        return times[int(generator.integers(len(times)))]


def _draw(times: ToolTimes, generator: np.random.Generator) -> float:
    if times.kind is ToolTimesKind.CONSTANT:
        return times.parameters[0]
    if times.kind is ToolTimesKind.EXPONENTIAL:
        return float(generator.exponential(times.parameters[0]))
    median, sigma = times.parameters
    return float(median * math.exp(sigma * generator.standard_normal()))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as exc:
        raise InvalidRequest(f"{name} must be a number, got {text!r}", path=OPTION) from exc
    if not 0.0 <= value <= MOST_SECONDS:
        raise InvalidRequest(f"{name} must be 0 to {MOST_SECONDS:g}, got {text}", path=OPTION)
    return value
