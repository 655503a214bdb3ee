"""verl: the tensors of a ``DataProto``, as numpy arrays.

``DataProto.from_dict(tensors=..., non_tensors=...)`` takes the two mappings once the arrays of the first are
made tensors. Prompts are padded on the left, responses on the right, so that every response starts in
the same column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from heddle.export.selection import Excluded, select
from heddle.records import Trajectory

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]
Objects: TypeAlias = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class VerlBatch:
    """N samples; P and R are the longest prompt and response.

    ``tensors``, by verl's names:
      - ``prompts`` int64 [N, P], ``responses`` int64 [N, R], ``input_ids`` int64 [N, P+R]
      - ``attention_mask``, ``position_ids`` int64 [N, P+R]; the mask is 1 on tool output, 0 on padding
      - ``response_mask`` int64 [N, R]: 1 exactly on sampled tokens
      - ``rollout_log_probs`` float32 [N, R]
      - ``rm_scores`` float32 [N, R]: the reward on the last token of the response, 0 elsewhere; absent
        where no record has a reward

    ``non_tensors``, object arrays [N]: ``uid`` (the group), ``trajectory_id``, ``prompt_id``, ``status``,
    ``stop_reason``, ``num_steps``, ``min_global_steps``, ``max_global_steps`` (oldest and newest weights).
    """

    tensors: dict[str, Ints | Floats]
    non_tensors: dict[str, Objects]
    excluded: tuple[Excluded, ...]


def to_verl(trajectories: Iterable[Trajectory], *, pad_token_id: int = 0) -> VerlBatch:
    """Records as one padded batch; what is no sample is left out and listed."""
    selection = select(trajectories)
    samples = selection.samples
    prompts, prompt_mask = _pad([s.prompt_ids for s in samples], pad_token_id, left=True)
    responses, response_attention = _pad([s.response_ids for s in samples], pad_token_id, left=False)
    attention = np.concatenate([prompt_mask, response_attention], axis=1)
    tensors: dict[str, Ints | Floats] = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": _pad([s.response_mask for s in samples], 0, left=False)[0],
        "rollout_log_probs": _pad_floats([s.response_logprobs for s in samples]),
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(np.cumsum(attention, axis=1) - 1, 0),
    }
    if selection.rewarded:
        tensors["rm_scores"] = _scores(samples, responses.shape[1])
    return VerlBatch(tensors, _non_tensors(samples), selection.excluded)


def _pad(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> tuple[Ints, Ints]:
    """The rows in one array [N, longest], and the mask of what is not padding."""
    width = max((len(row) for row in rows), default=0)
    values = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        columns = slice(width - len(row), width) if left else slice(0, len(row))
        values[place, columns] = row
        mask[place, columns] = 1
    return values, mask


def _pad_floats(rows: Sequence[Sequence[float]]) -> Floats:
    values = np.zeros((len(rows), max((len(row) for row in rows), default=0)), dtype=np.float32)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    return values


def _scores(samples: Sequence[Trajectory], width: int) -> Floats:
    scores = np.zeros((len(samples), width), dtype=np.float32)
    for place, sample in enumerate(samples):
        scores[place, len(sample.response_ids) - 1] = sample.reward
    return scores


def _non_tensors(samples: Sequence[Trajectory]) -> dict[str, Objects]:
    versions = [_sampled_versions(sample) for sample in samples]
    return {
        "uid": _objects([s.group_id for s in samples]),
        "trajectory_id": _objects([s.trajectory_id for s in samples]),
        "prompt_id": _objects([s.prompt_id for s in samples]),
        "status": _objects([s.status.value for s in samples]),
        "stop_reason": _objects([s.stop_reason.value for s in samples]),
        "num_steps": _objects([len(s.steps) for s in samples]),
        "min_global_steps": _objects([min(v) for v in versions]),
        "max_global_steps": _objects([max(v) for v in versions]),
    }


def _sampled_versions(sample: Trajectory) -> list[int]:
    """Weight versions of the sampled tokens; of all tokens where none was sampled."""
    pairs = zip(sample.response_mask, sample.weight_versions, strict=True)
    return [version for mask, version in pairs if mask == 1] or sample.weight_versions


def _objects(values: Sequence[str | int]) -> Objects:
    return np.array(values, dtype=np.object_)
