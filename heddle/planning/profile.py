"""The profile of one model on one kind of GPU: step times by parallel degree and batch.

``T[tp]`` is the seconds per token alone on a worker of degree ``tp``; ``F[tp][b] >= 1`` is the interference
factor of a running batch of ``b``, so that every member gets a token each ``T[tp] * F[tp][b]`` seconds.

Measured tables dip here and there (a batch of 2 seems faster than one of 1). Every planner relies on a batch
never getting faster by growing, so the table is made monotone by a running maximum. Between measured batches
it is linear. Beyond the largest measured batch it grows at least in proportion to the batch: a throughput
that nobody has measured is never promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from heddle.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"

MIN_STEP_S, MAX_STEP_S = 1e-9, 1e6
"""Seconds of a step that an engine can have; within them no price under- or overflows."""


@dataclass(frozen=True, slots=True)
class DegreeProfile:
    """Workers of one degree. Raises ``ConfigError`` for numbers that no worker can have."""

    tp_degree: int
    batches: tuple[int, ...]
    """Measured batch sizes, ascending, the first one 1."""
    step_seconds: tuple[float, ...]
    """Seconds of one decoding step at each of ``batches``, non-decreasing."""
    slots: int | None = None
    """Trajectories that run at once at most; ``None``: no cap."""
    kv_capacity_tokens: int | None = None
    """Tokens that the worker's KV pool holds; ``None``: no cap."""
    prefill_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        name = f"degree {self.tp_degree}"
        if self.tp_degree < 1:
            raise ConfigError(f"a parallel degree must be at least 1, got {self.tp_degree}")
        if not self.batches or self.batches[0] != 1:
            raise ConfigError(f"{name}: the profile must include batch 1")
        if len(self.batches) != len(self.step_seconds):
            raise ConfigError(f"{name}: {len(self.batches)} batches but {len(self.step_seconds)} step times")
        if any(a >= b for a, b in zip(self.batches, self.batches[1:], strict=False)):
            raise ConfigError(f"{name}: batches must ascend, got {self.batches}")
        if not all(MIN_STEP_S <= seconds <= MAX_STEP_S for seconds in self.step_seconds):
            raise ConfigError(f"{name}: step times must be between {MIN_STEP_S} and {MAX_STEP_S} seconds")
        if any(a > b for a, b in zip(self.step_seconds, self.step_seconds[1:], strict=False)):
            raise ConfigError(f"{name}: step times must not fall as the batch grows")
        if self.slots is not None and self.slots < 1:
            raise ConfigError(f"{name}: slots must be at least 1, got {self.slots}")
        if self.kv_capacity_tokens is not None and self.kv_capacity_tokens < 0:
            raise ConfigError(f"{name}: the KV capacity must not be negative, got {self.kv_capacity_tokens}")

    @classmethod
    def measured(
        cls,
        tp_degree: int,
        points: Sequence[tuple[int, float]],
        *,
        slots: int | None = None,
        kv_capacity_tokens: int | None = None,
        prefill_tokens_per_s: float | None = None,
    ) -> DegreeProfile:
        """From measured ``(batch, seconds)`` in any order; dips are lifted by a running maximum."""
        ordered = sorted(points)
        step_seconds: list[float] = []
        for _, seconds in ordered:
            step_seconds.append(max(seconds, step_seconds[-1]) if step_seconds else seconds)
        batches = tuple(batch for batch, _ in ordered)
        return cls(tp_degree, batches, tuple(step_seconds), slots, kv_capacity_tokens, prefill_tokens_per_s)

    @property
    def token_seconds(self) -> float:
        """``T``: seconds per token alone."""
        return self.step_seconds[0]

    def interference(self, batch: int) -> float:
        """``F``: how much longer a step takes at this batch than alone; 1.0 at a batch of one."""
        return float(self.step_table(batch)[batch] / self.step_seconds[0])

    def step_table(self, most: int) -> Floats:
        """Seconds of a step at every batch from 0 (0.0) to ``most``; shape ``(most + 1,)``, rising."""
        import numpy as np  # imported late: most coordinators plan nothing

        batch = np.arange(most + 1, dtype=np.float64)
        table = np.interp(batch, self.batches, self.step_seconds)
        last, last_seconds = self.batches[-1], self.step_seconds[-1]
        beyond = batch > last
        table[beyond] = last_seconds + (batch[beyond] - last) * self._slope_beyond()
        table[0] = 0.0
        # Interpolation rounds; solvers compare these values and must never see a fall of one ulp.
        return np.maximum.accumulate(table)

    def _slope_beyond(self) -> float:
        """Of the last measured segment, yet never below in proportion to the batch."""
        in_proportion = self.step_seconds[-1] / self.batches[-1]
        if len(self.batches) == 1:
            return in_proportion
        rise = self.step_seconds[-1] - self.step_seconds[-2]
        return max(rise / (self.batches[-1] - self.batches[-2]), in_proportion)

    def concurrency(self, context_tokens: float) -> int | None:
        """How many trajectories of this mean context run at once; 0: not even one; ``None``: no cap."""
        caps = [] if self.slots is None else [self.slots]
        if self.kv_capacity_tokens is not None and context_tokens > 0:
            caps.append(int(self.kv_capacity_tokens // context_tokens))
        return min(caps, default=None)


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one kind of GPU. Raises ``ConfigError`` for no degree or one given twice."""

    gpu: str
    model: str
    context_tokens: float
    """Mean context of a running trajectory that the step times hold for."""
    degrees: tuple[DegreeProfile, ...]
    """Ascending by ``tp_degree``."""

    def __post_init__(self) -> None:
        numbers = [degree.tp_degree for degree in self.degrees]
        if not numbers:
            raise ConfigError("a profile needs at least one parallel degree")
        if numbers != sorted(set(numbers)):
            raise ConfigError(f"the degrees of a profile must ascend, each once; got {numbers}")

    def __getitem__(self, tp_degree: int) -> DegreeProfile:
        """Raises ``ConfigError`` that lists the degrees there are."""
        for degree in self.degrees:
            if degree.tp_degree == tp_degree:
                return degree
        there = ", ".join(str(degree.tp_degree) for degree in self.degrees)
        raise ConfigError(f"the profile has no degree {tp_degree}; it has {there}")


def required(profile: Profile | None, by: str) -> Profile:
    """The profile; raises ``ConfigError`` that tells who lacks one and how to come by it."""
    if profile is None:
        raise ConfigError(
            f"{by} needs a profile of the workers' step times: measure one with heddle profile --out FILE.csv"
            " and set decisions.profile, or take a shipped one by decisions.profile_gpu and profile_model"
        )
    return profile
