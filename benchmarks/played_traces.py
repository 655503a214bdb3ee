"""Recorded workloads as the benchmarks play them: contexts that fit, tool times drawn.

Recorded tool times include the wait for people, so they are drawn from a distribution by the kind of agent.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heddle.simulate.readers import read_workload
from heddle.simulate.sampling import SampleSource, with_longer_outputs, within_context
from heddle.simulate.shipped import shipped_trace
from heddle.simulate.tool_times import ToolTimes, parse_tool_times, without_tool_times
from heddle.simulate.workload import Workload

MOST_CONTEXT = 16_384
"""The largest model on one GPU holds little more."""
TOOLS: Mapping[str, str] = {
    "coding": "lognormal:median=0.3,sigma=0.8",
    "search": "lognormal:median=1.0,sigma=0.8",
    "math": "lognormal:median=0.033,sigma=0.8",
}
"""Means of 0.41, 1.38 and 0.045 s: the paper's 0.41, 1.41 and 0.046 s."""
OTHER_TOOLS = "lognormal:median=0.3,sigma=0.8"
SHIPPED: Mapping[str, str] = {"coding": "coding_agent", "search": "search_agent", "math": "math_agent"}


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload by name, and the tool times it gets."""

    name: str
    workload: Workload
    tools: ToolTimes
    source: SampleSource


def load_traces(folder: Path | None, scale: float, most_context: int = MOST_CONTEXT) -> list[Trace]:
    """The shipped traces, or those of a folder."""
    if folder is None:
        contents = {name: shipped_trace(shipped) for name, shipped in SHIPPED.items()}
    else:
        paths = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
        contents = {path.name.partition(".jsonl")[0]: _unpacked(path) for path in paths}
    return [_trace(name, content, scale, most_context) for name, content in contents.items()]


def _unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _trace(name: str, content: bytes, scale: float, most_context: int) -> Trace:
    recorded = read_workload(content, name=name)
    workload = within_context(with_longer_outputs(recorded, scale), most_context)
    groups = {trajectory.group_id for trajectory in workload.trajectories}
    alone = len(groups) == len(workload.trajectories)
    return Trace(
        name,
        without_tool_times(workload),
        parse_tool_times(TOOLS.get(name, OTHER_TOOLS)),
        SampleSource.TRACE if alone else SampleSource.PROMPT,
    )
