"""What a group of trajectories costs on a worker: one protocol, three models.

- static: ``L_first * T * F(size)``, the paper's: the batch never shrinks.
- KV-aware: the same up to the worker's concurrency (slots, KV capacity); beyond it members wait, so
  that a group of ``k`` takes ``k / cap`` times as long as a full batch.
- draining: the group is run to its end, longest first; see ``heddle.planning.kernels.draining``.

The first two depend on a group only through its size and longest member, which is what makes them exactly
solvable: :class:`SizeCost`. Their table is ``steps[d, k]``: seconds per token of the longest member at degree
``d`` (descending order) in a group of ``k``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.kernels.draining import group_seconds
from heddle.planning.plan import Indices, PriceName
from heddle.planning.profile import Floats, Profile


class GroupCost(Protocol):
    """Seconds that a worker takes for a group."""

    @property
    def name(self) -> PriceName: ...

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those that can be priced, descending."""
        ...

    def seconds(self, tp_degree: int, lengths: Floats) -> float:
        """Price of a group whose ``lengths`` descend; 0.0 for none. ``ConfigError``: unknown degree."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SizeCost:
    """A price that knows a group's size and longest member only."""

    name: PriceName
    degrees: tuple[int, ...]
    steps: Floats
    """Shape ``(degrees, n + 1)``, rows non-decreasing, first column 0."""

    def seconds(self, tp_degree: int, lengths: Floats) -> float:
        """See :class:`GroupCost`; the group has at most ``n`` members."""
        row = row_of(self.degrees, tp_degree)
        return float(lengths[0] * self.steps[row, len(lengths)]) if len(lengths) else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class DrainingCost:
    """The price is the time at which the group's last member ends."""

    degrees: tuple[int, ...]
    steps: Floats
    """Seconds of a step at every batch; shape ``(degrees, n + 1)``, rows non-decreasing, first column 0."""
    caps: Indices
    """Members that run at once at most, of each degree, 1 to ``n``; shape ``(degrees,)``."""

    @property
    def name(self) -> PriceName:
        """See :class:`GroupCost`."""
        return PriceName.DRAINING

    def seconds(self, tp_degree: int, lengths: Floats) -> float:
        """See :class:`GroupCost`; exact, event by event, O(k log k)."""
        row = row_of(self.degrees, tp_degree)
        return float(group_seconds(np.ascontiguousarray(lengths), self.steps[row], int(self.caps[row])))


def static_cost(profile: Profile, degrees: Sequence[int], most: int) -> SizeCost:
    """The paper's price for groups of up to ``most``; slots and KV capacity are ignored."""
    return SizeCost(PriceName.STATIC, tuple(degrees), _step_tables(profile, degrees, most))


def kv_aware_cost(
    profile: Profile,
    degrees: Sequence[int],
    most: int,
    *,
    slots_per_gpu: int | None = None,
    context_tokens: float | None = None,
) -> SizeCost:
    """The static price with waiting for groups of up to ``most``."""
    return kv_aware_price(
        draining_cost(profile, degrees, most, slots_per_gpu=slots_per_gpu, context_tokens=context_tokens)
    )


def draining_cost(
    profile: Profile,
    degrees: Sequence[int],
    most: int,
    *,
    slots_per_gpu: int | None = None,
    context_tokens: float | None = None,
) -> DrainingCost:
    """The draining price for groups of up to ``most``."""
    caps = concurrency(profile, degrees, most, slots_per_gpu=slots_per_gpu, context_tokens=context_tokens)
    return DrainingCost(tuple(degrees), _step_tables(profile, degrees, most), caps)


def static_price(cost: DrainingCost) -> SizeCost:
    """The static price on the same step times."""
    return SizeCost(PriceName.STATIC, cost.degrees, cost.steps)


def kv_aware_price(cost: DrainingCost) -> SizeCost:
    """The KV-aware price on the same step times and caps."""
    steps = cost.steps.copy()
    size = np.arange(steps.shape[1], dtype=np.float64)
    for row, cap in zip(steps, cost.caps, strict=True):
        row[cap + 1 :] = row[cap] * (size[cap + 1 :] / cap)
    return SizeCost(PriceName.KV_AWARE, cost.degrees, np.maximum.accumulate(steps, axis=1))


def concurrency(
    profile: Profile,
    degrees: Sequence[int],
    most: int,
    *,
    slots_per_gpu: int | None = None,
    context_tokens: float | None = None,
) -> Indices:
    """Members that run at once on a worker of each degree, 1 to ``max(most, 1)``.

    Raises ``ConfigError`` where not even one fits.
    """
    if slots_per_gpu is not None and slots_per_gpu < 1:
        raise ConfigError(f"slots_per_gpu must be at least 1, got {slots_per_gpu}")
    context = profile.context_tokens if context_tokens is None else context_tokens
    caps = []
    for degree in degrees:
        cap = max(most, 1)
        in_profile = profile[degree].concurrency(context)
        if in_profile is not None:
            cap = min(cap, in_profile)
        if slots_per_gpu is not None:
            cap = min(cap, slots_per_gpu * degree)
        if cap < 1:
            raise ConfigError(f"degree {degree} has no memory for a single trajectory of {context:g} tokens")
        caps.append(cap)
    return np.array(caps, dtype=np.int64)


def row_of(degrees: Sequence[int], tp_degree: int) -> int:
    """The row of a degree. Raises ``ConfigError`` that lists the priced ones."""
    if tp_degree not in degrees:
        raise ConfigError(f"degree {tp_degree} has no price; priced are {', '.join(map(str, degrees))}")
    return list(degrees).index(tp_degree)


def _step_tables(profile: Profile, degrees: Sequence[int], most: int) -> Floats:
    return np.stack([profile[degree].step_table(max(most, 1)) for degree in degrees])
