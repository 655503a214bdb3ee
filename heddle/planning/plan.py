"""What a caller asks a planner and what it gets back. Values only; nothing here solves or imports numba."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from heddle.errors import ConfigError
from heddle.planning.profile import Floats, Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Indices: TypeAlias = "NDArray[np.int64]"


class PlacerName(StrEnum):
    """Who makes groups for given workers."""

    PRESORTED_DP = "presorted_dp"
    """The paper's recurrence over the sorted lengths; no worker stays empty."""
    EXACT = "exact"
    """The optimum of a price that depends on the size of a group and its longest member."""
    DRAIN = "drain"
    """Local search, judged by running each group to its end."""


class AllocatorName(StrEnum):
    """Who chooses the workers."""

    FIXED = "fixed"
    """As many workers of one given degree as the budget holds."""
    ANNEALING = "annealing"
    """The paper's Algorithm 2, placing with the given placer at every try."""
    EXACT = "exact"
    """The joint optimum of workers and groups for a size price; places by itself."""
    DRAIN = "drain"
    """The default: the best of all candidates, improved by local search; places by itself."""


class PriceName(StrEnum):
    """What a group is said to cost."""

    STATIC = "static"
    """The longest member at the interference of the whole group, as in the paper."""
    KV_AWARE = "kv_aware"
    """The same, yet what exceeds slots and KV capacity waits."""
    DRAINING = "draining"
    """The time to run the group to its end, the batch shrinking as members finish."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanRequest:
    """A planning problem. Checked by :func:`heddle.control.planning.make_plan`."""

    lengths: Sequence[float] | Floats
    """Predicted tokens to generate of each trajectory, in the caller's order."""
    gpus: int
    profile: Profile
    degrees: tuple[int, ...] | None = None
    """Parallel degrees that workers may have; ``None``: all of the profile that fit."""
    placer: PlacerName | None = None
    """``None``: what suits the allocator: ``drain`` for ``drain``, else ``exact``."""
    allocator: AllocatorName = AllocatorName.DRAIN
    fixed_degree: int | None = None
    """Of every worker, for the allocator ``fixed``."""
    price: PriceName | None = None
    """``None``: draining for ``drain``, else static."""
    kv_heads: int | None = None
    """KV heads of the model: degrees that do not divide them are forbidden; ``None``: all allowed."""
    slots_per_gpu: int | None = None
    """Cap of running trajectories per GPU of a worker, besides those of the profile."""
    context_tokens: float | None = None
    """Mean context held by a running trajectory, for the KV capacity; ``None``: that of the profile."""
    min_workers: int | None = None
    """For the allocator ``exact``."""
    max_workers: int | None = None
    """For the allocator ``exact``."""
    bundle_below_tokens: float = 0.0
    """``presorted_dp`` handles trajectories shorter than this in bundles."""
    seed: int = 0
    deadline_s: float = 1.0
    """How long ``drain`` and ``annealing`` may search; the best found by then is the plan."""
    compare: bool = True
    """Whether to solve for every homogeneous pool too."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWorker:
    """One worker and its group."""

    tp_degree: int
    members: Indices
    """Indices into the lengths of the request, longest first; may be empty."""
    first_length: float
    """Tokens of the longest member; 0.0 where there is none."""
    seconds: float
    """The group's price."""

    @property
    def size(self) -> int:
        """How many trajectories."""
        return len(self.members)


@dataclass(frozen=True, slots=True)
class Compared:
    """Another plan for the same request at the same price."""

    name: str
    """``fix-1``, ``fix-2``, ...: the homogeneous pool of that degree."""
    makespan_s: float
    tp_degree: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The answer."""

    workers: tuple[PlannedWorker, ...]
    """Descending by degree, then in descending order of their longest member."""
    makespan_s: float
    """The dearest group's price; 0.0 without trajectories."""
    lower_bound_s: float
    """No plan within the budget has a smaller makespan at this price: see ``heddle.planning.bound``."""
    price: PriceName
    compared: tuple[Compared, ...]
    solve_ms: float
    """Time to find the plan; bound and comparison count only where the search uses them (``drain``)."""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """What solvers pass among themselves: groups of positions in the *descending* order of lengths."""

    degrees: tuple[int, ...]
    groups: tuple[Indices, ...]
    """One a worker, each ascending (longest member first); together every position once."""
    makespan_s: float


MAX_GPUS = 4096
"""Planners build tables as long as the budget; no rollout spans more."""

MIN_TOKENS = 1e-6
"""What is shorter counts as no work at all, so that no price underflows."""
MAX_TOKENS = 1e12
"""A longer trajectory is a slip of the pen; below it no price overflows."""


def checked_lengths(lengths: Sequence[float] | Floats) -> Floats:
    """As an array of shape ``(n,)``. Raises ``ConfigError`` that names the first unusable length."""
    import numpy as np  # imported late: names of planners are needed without it

    try:
        array = np.asarray(lengths, dtype=np.float64)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"lengths must be numbers: {exc}") from exc
    if array.ndim != 1:
        raise ConfigError(f"lengths must be a flat list of numbers, got {array.ndim} dimensions")
    wrong = np.flatnonzero(~((array >= 0) & (array <= MAX_TOKENS)))
    if len(wrong):
        raise ConfigError(
            f"length {int(wrong[0])} must be between 0 and {MAX_TOKENS:g}, got {float(array[wrong[0]])}"
        )
    return np.where(array < MIN_TOKENS, 0.0, array)


def usable_degrees(
    profile: Profile,
    gpus: int,
    *,
    degrees: tuple[int, ...] | None = None,
    kv_heads: int | None = None,
    context_tokens: float | None = None,
) -> tuple[int, ...]:
    """The degrees that workers may have, descending.

    Of the profile's own degrees those that do not fit budget, KV heads or memory are passed over; one that
    the caller names must fit. Raises ``ConfigError`` for one that does not, or where none is left.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise ConfigError(f"the budget must be 1 to {MAX_GPUS} GPUs, got {gpus}")
    if kv_heads is not None and kv_heads < 1:
        raise ConfigError(f"kv_heads must be at least 1, got {kv_heads}")
    context = profile.context_tokens if context_tokens is None else context_tokens
    if not (math.isfinite(context) and context >= 0):
        raise ConfigError(f"the context length must be finite and not negative, got {context}")
    named = tuple(degree.tp_degree for degree in profile.degrees) if degrees is None else degrees
    refused = {
        degree: reason
        for degree in named
        if (reason := _refusal(profile, degree, gpus, kv_heads, context)) is not None
    }
    usable = tuple(sorted({degree for degree in named if degree not in refused}, reverse=True))
    if refused and (degrees is not None or not usable):
        raise ConfigError("; ".join(refused.values()))
    if not usable:
        raise ConfigError("at least one parallel degree must be allowed")
    return usable


def _refusal(profile: Profile, degree: int, gpus: int, kv_heads: int | None, context: float) -> str | None:
    if degree > gpus:
        return f"degree {degree} exceeds the budget of {gpus} GPUs"
    if kv_heads is not None and kv_heads % degree:
        return f"degree {degree} does not divide the {kv_heads} KV heads"
    if profile[degree].concurrency(context) == 0:
        return f"degree {degree} has no memory for a single trajectory of {context:g} tokens"
    return None
