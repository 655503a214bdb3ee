"""Which records become training samples, and why the others do not. One rule for every trainer.

An infrastructure failure says nothing about the policy: it is never a sample, least of all one with reward
0. Leaving it out makes its group smaller; a trainer that needs full groups runs the prompt again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from heddle.records import FailureKind, Trajectory


class Exclusion(StrEnum):
    """Why a record is no sample."""

    INFRA_FAILURE = "infra_failure"
    NO_RESPONSE = "no_response"
    """It ended before it had a single token: nothing to learn from."""
    NO_REWARD = "no_reward"
    """Others of the same export have a reward and this one has none: any number would be invented."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A record that is no sample."""

    trajectory_id: str
    reason: Exclusion


@dataclass(frozen=True, slots=True)
class Selection:
    """Samples in their given order, and what was left out."""

    samples: tuple[Trajectory, ...]
    excluded: tuple[Excluded, ...]

    @property
    def rewarded(self) -> bool:
        """Whether the samples have rewards: all of them or none."""
        return any(sample.reward is not None for sample in self.samples)


def select(trajectories: Iterable[Trajectory]) -> Selection:
    """Split records into samples and the rest.

    Where no record at all has a reward, none is left out for that: the trainer computes its own.
    """
    usable: list[Trajectory] = []
    excluded: list[Excluded] = []
    for trajectory in trajectories:
        if is_infra_failure(trajectory):
            excluded.append(Excluded(trajectory.trajectory_id, Exclusion.INFRA_FAILURE))
        elif not trajectory.response_ids:
            excluded.append(Excluded(trajectory.trajectory_id, Exclusion.NO_RESPONSE))
        else:
            usable.append(trajectory)
    rewarded = [trajectory for trajectory in usable if trajectory.reward is not None]
    if not rewarded:
        return Selection(tuple(usable), tuple(excluded))
    excluded += [Excluded(t.trajectory_id, Exclusion.NO_REWARD) for t in usable if t.reward is None]
    return Selection(tuple(rewarded), tuple(excluded))


def is_infra_failure(trajectory: Trajectory) -> bool:
    """Whether the infrastructure, not the policy, ended it."""
    return trajectory.failure is not None and trajectory.failure.kind is FailureKind.INFRA
