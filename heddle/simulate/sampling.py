"""Workloads from workloads: batches drawn with replacement, and cuts that are said to be cuts.

A trace has the prompts and samples that it has; a rollout wants groups of ``n`` samples. Drawn ones are a
bootstrap: new combinations of recorded trajectories, not new trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from heddle.errors import InvalidRequest
from heddle.simulate.workload import Workload, WorkTrajectory
from heddle.types import GroupId, TrajectoryId

_STREAM = 0x64726177
"""Keeps these draws apart from others of the same seed."""


class SampleSource(StrEnum):
    """Whose trajectories fill a drawn group."""

    PROMPT = "prompt"
    """Those of the drawn prompt. Of a prompt with one recorded sample all members are alike."""
    TRACE = "trace"
    """All of the trace, behind the drawn prompt: lengths vary within a group as they do over the trace."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What to draw."""

    groups: int
    samples: int
    source: SampleSource = SampleSource.PROMPT

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise InvalidRequest(f"must be at least 1, got {self.groups}", path="--groups")
        if self.samples < 1:
            raise InvalidRequest(f"must be at least 1, got {self.samples}", path="--samples")

    def part(self, parts: int) -> Draw:
        """One of so many equal parts of it, in whole groups."""
        return replace(self, groups=max(1, self.groups // parts))


def bootstrap(workload: Workload, draw: Draw, seed: int) -> Workload:
    """``draw.groups`` prompts with replacement, ``draw.samples`` trajectories of each; all arrive at once.

    The same for the same seed; a note says what was drawn.
    """
    generator = np.random.default_rng([_STREAM, seed])
    prompts = _by_group(workload.trajectories)
    names = list(prompts)
    drawn: list[WorkTrajectory] = []
    for group, chosen in enumerate(generator.integers(len(names), size=draw.groups)):
        members = prompts[names[chosen]]
        pool = members if draw.source is SampleSource.PROMPT else workload.trajectories
        for sample, index in enumerate(generator.integers(len(pool), size=draw.samples)):
            drawn.append(_as_sample(pool[index], members[0], group, sample))
    return replace(workload, trajectories=tuple(drawn), notes=(*workload.notes, _note(draw, prompts)))


def within_context(workload: Workload, most_tokens: int) -> Workload:
    """Without the trajectories whose context grows beyond ``most_tokens``; a note says how many.

    Raises ``InvalidRequest`` where none is left.
    """
    kept = tuple(t for t in workload.trajectories if context_tokens(t) <= most_tokens)
    if not kept:
        raise InvalidRequest(f"no trajectory of {workload.name} fits {most_tokens:,}", path="--max-context")
    left_out = len(workload.trajectories) - len(kept)
    if not left_out:
        return workload
    note = (
        f"{left_out:,} of {len(workload.trajectories):,} trajectories left out: context above {most_tokens:,}"
    )
    return replace(workload, trajectories=kept, notes=(*workload.notes, note))


def with_longer_outputs(workload: Workload, factor: float) -> Workload:
    """With every generation ``factor`` times as long, at least one token; a note says so."""
    if not factor > 0:
        raise InvalidRequest(f"must be positive, got {factor}", path="--token-scale")
    if factor == 1:
        return workload
    trajectories = tuple(
        replace(
            t, steps=tuple(replace(s, output_tokens=max(1, round(factor * s.output_tokens))) for s in t.steps)
        )
        for t in workload.trajectories
    )
    note = f"sampled tokens of every step times {factor:g}"
    return replace(workload, trajectories=trajectories, notes=(*workload.notes, note))


def with_tools_cut(workload: Workload, most_s: float) -> Workload:
    """With longer tool times cut to ``most_s`` seconds; a note says how many."""
    if not most_s >= 0:
        raise InvalidRequest(f"must not be negative, got {most_s}", path="--max-tool-seconds")
    cut = sum((s.tool_seconds or 0.0) > most_s for t in workload.trajectories for s in t.steps)
    if not cut:
        return workload
    trajectories = tuple(
        replace(
            t,
            steps=tuple(
                replace(s, tool_seconds=min(s.tool_seconds, most_s)) if s.tool_seconds else s for s in t.steps
            ),
        )
        for t in workload.trajectories
    )
    note = f"{cut:,} tool times cut to {most_s:g} s"
    return replace(workload, trajectories=trajectories, notes=(*workload.notes, note))


def context_tokens(trajectory: WorkTrajectory) -> int:
    """Tokens of a trajectory's context at its end."""
    return sum(step.prompt_tokens + step.output_tokens for step in trajectory.steps)


def mean_running_context(workload: Workload) -> float:
    """Mean context over all sampled tokens, each counted when it is sampled; 0.0 without any."""
    tokens = contexts = 0
    for trajectory in workload.trajectories:
        context = 0
        for step in trajectory.steps:
            context += step.prompt_tokens
            tokens += step.output_tokens
            contexts += step.output_tokens * context + step.output_tokens * (step.output_tokens - 1) // 2
            context += step.output_tokens
    return contexts / tokens if tokens else 0.0


def _by_group(trajectories: Sequence[WorkTrajectory]) -> Mapping[GroupId, list[WorkTrajectory]]:
    groups: dict[GroupId, list[WorkTrajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def _as_sample(member: WorkTrajectory, prompt: WorkTrajectory, group: int, sample: int) -> WorkTrajectory:
    """A recorded trajectory behind the prompt of its new group."""
    first = replace(member.steps[0], prompt_tokens=prompt.steps[0].prompt_tokens)
    return WorkTrajectory(
        TrajectoryId(f"g{group}-t{sample}"), GroupId(f"g{group}"), (first, *member.steps[1:])
    )


def _note(draw: Draw, prompts: Mapping[GroupId, Sequence[WorkTrajectory]]) -> str:
    text = f"bootstrap: {draw.groups:,} prompts drawn with replacement from {len(prompts):,}, {draw.samples} "
    if draw.source is SampleSource.TRACE:
        return text + "trajectories of the whole trace behind each"
    single = sum(len(members) == 1 for members in prompts.values())
    text += "of its trajectories each"
    return text + (f"; {single:,} prompts have one, so that their groups are alike" if single else "")
