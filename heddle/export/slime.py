"""slime: one ``Sample`` as a JSON object, as ``Sample.from_dict`` takes it.

``tokens`` is prompt and response together; ``loss_mask`` and ``rollout_log_probs`` cover the response alone.
slime's statuses are Heddle's: ``from_dict`` wants them by value (``completed``), not by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypedDict

from heddle.export.selection import Excluded, is_infra_failure, select
from heddle.records import Trajectory
from heddle.types import Json


class SlimeMetadata(TypedDict):
    """What slime passes along without reading it."""

    trajectory_id: str
    batch_id: str
    group_id: str
    prompt_id: str
    environment: str
    attempt: int
    stop_reason: str
    failure: dict[str, Json] | None
    reward_info: dict[str, Json]
    num_steps: int
    source: dict[str, Json]
    """The caller's own metadata."""


class SlimePrefixCache(TypedDict):
    """Prompt tokens over all steps, and how many of them the engine had cached."""

    cached_tokens: int
    total_prompt_tokens: int


class SlimeSample(TypedDict):
    """The fields of slime's ``Sample`` that a rollout fills."""

    group_index: int
    index: int
    tokens: list[int]
    response_length: int
    loss_mask: list[int]
    rollout_log_probs: list[float]
    reward: float | None
    status: str
    non_generation_time: float
    """Seconds in tools, their queue and cold start included."""
    prefix_cache_info: SlimePrefixCache
    weight_versions: list[str]
    """The weights that sampled, oldest first, one entry per run of equal versions."""
    remove_sample: bool
    metadata: SlimeMetadata


@dataclass(frozen=True, slots=True)
class SlimeSamples:
    """Samples in their given order, and what was left out."""

    samples: tuple[SlimeSample, ...]
    excluded: tuple[Excluded, ...]


def to_slime(trajectory: Trajectory, *, group_index: int = 0, index: int = 0) -> SlimeSample:
    """One record. ``group_index`` numbers the prompts and ``index`` the samples of the whole rollout.

    An infrastructure failure is masked: ``remove_sample``, an all-zero ``loss_mask``, reward null.
    """
    masked = is_infra_failure(trajectory)
    timing = trajectory.timing
    mask = [0] * len(trajectory.response_ids) if masked else list(trajectory.response_mask)
    return SlimeSample(
        group_index=group_index,
        index=index,
        tokens=[*trajectory.prompt_ids, *trajectory.response_ids],
        response_length=len(trajectory.response_ids),
        loss_mask=mask,
        rollout_log_probs=list(trajectory.response_logprobs),
        reward=None if masked else trajectory.reward,
        status=trajectory.status.value,
        non_generation_time=timing.tool_queue + timing.tool_cold + timing.tool_run,
        prefix_cache_info=SlimePrefixCache(
            cached_tokens=sum(step.cached_tokens for step in trajectory.steps),
            total_prompt_tokens=sum(step.prompt_tokens for step in trajectory.steps),
        ),
        weight_versions=_version_runs(trajectory),
        remove_sample=masked,
        metadata=_metadata(trajectory),
    )


def to_slime_samples(trajectories: Iterable[Trajectory]) -> SlimeSamples:
    """A whole rollout: groups and samples are numbered from 0 in their order of appearance.

    What is no sample (infrastructure failures among them) is left out and listed.
    """
    selection = select(trajectories)
    groups: dict[tuple[str, str], int] = {}
    samples = tuple(
        to_slime(
            sample,
            group_index=groups.setdefault((sample.batch_id, sample.group_id), len(groups)),
            index=index,
        )
        for index, sample in enumerate(selection.samples)
    )
    return SlimeSamples(samples, selection.excluded)


def _version_runs(trajectory: Trajectory) -> list[str]:
    pairs = zip(trajectory.response_mask, trajectory.weight_versions, strict=False)
    return [str(version) for version, _ in groupby(version for mask, version in pairs if mask == 1)]


def _metadata(trajectory: Trajectory) -> SlimeMetadata:
    failure = trajectory.failure
    return SlimeMetadata(
        trajectory_id=trajectory.trajectory_id,
        batch_id=trajectory.batch_id,
        group_id=trajectory.group_id,
        prompt_id=trajectory.prompt_id,
        environment=trajectory.environment,
        attempt=trajectory.attempt,
        stop_reason=trajectory.stop_reason.value,
        failure=None
        if failure is None
        else {"kind": failure.kind.value, "stage": failure.stage, "message": failure.message},
        reward_info=trajectory.reward_info,
        num_steps=len(trajectory.steps),
        source=trajectory.metadata,
    )
