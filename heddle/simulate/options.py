"""What is injected into a simulation and what is asked of it, beside workload, settings and hardware."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from heddle.errors import ConfigError
from heddle.types import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerCrash:
    """A worker dies with everything that it has computed."""

    worker_id: WorkerId
    at_s: float
    restart_s: float | None = 30.0
    """Until it is ready again; ``None``: it never comes back."""


@dataclass(frozen=True, slots=True)
class WorkerSlowdown:
    """Everything that a worker does takes ``factor`` times as long for a while."""

    worker_id: WorkerId
    at_s: float
    factor: float
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Every open trajectory is cancelled by whoever submitted it."""

    at_s: float


MOST_SECONDS = 10.0**7
"""Longest duration of a simulation's part: four months, and far from where adding a step changes nothing."""


def _check_seconds(value: float, what: str) -> None:
    if not 0.0 <= value <= MOST_SECONDS:
        raise ConfigError(f"{what} must be 0 to {MOST_SECONDS:g} seconds, got {value}")


Fault: TypeAlias = WorkerCrash | WorkerSlowdown | Cancellation
"""What can be injected."""


@dataclass(frozen=True, slots=True)
class ToolModel:
    """Where tools run."""

    concurrency: int | None = None
    """Calls that run at once at most, first come, first served; ``None``: no limit."""
    cold_start_s: float = 0.0
    """Of a call that finds no sandbox ready."""
    prewarmed: int = 0
    """Sandboxes that are ready from the start."""
    keep_warm_s: float = math.inf
    """How long a sandbox stays ready after a call."""

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"at least one tool must be able to run, got {self.concurrency}")
        _check_seconds(self.cold_start_s, "the cold start of a tool")
        if not self.keep_warm_s >= 0 or self.prewarmed < 0:
            raise ConfigError("times and numbers of sandboxes must not be negative")


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Defaults play the workload without faults, on tools without a limit, and record nothing."""

    tools: ToolModel = field(default_factory=ToolModel)
    overhead_s: float = 0.0
    """Of each step outside engines and tools: parsing, the journal, the connection."""
    faults: tuple[Fault, ...] = ()
    retry_s: float = 0.1
    """From a worker's death until its trajectories ask to go on elsewhere."""
    record_spans: bool = False
    check_every: int = 0
    """Control events after which the invariants are checked; 0: only at the end."""
    learned: str | None = None
    """What a predictor knows from before, as JSON text; the control plane hears of it first of all."""
    log: Callable[[bytes], None] | None = None
    """Hears each line of the event log, its header first, without newlines; as it is written live."""

    def __post_init__(self) -> None:
        _check_seconds(self.overhead_s, "the overhead of a step")
        _check_seconds(self.retry_s, "the time until a retry")
        if self.check_every < 0:
            raise ConfigError(f"invariants cannot be checked every {self.check_every} events")
        for fault in self.faults:
            if not (math.isfinite(fault.at_s) and fault.at_s >= 0):
                raise ConfigError(f"a fault needs a time, got {fault}")
            if isinstance(fault, WorkerSlowdown) and not (fault.factor > 0 and fault.until_s >= fault.at_s):
                raise ConfigError(f"a slowdown needs a positive factor and an end after its begin: {fault}")
            if isinstance(fault, WorkerCrash) and fault.restart_s is not None and fault.restart_s < 0:
                raise ConfigError(f"a restart cannot take less than no time: {fault}")
