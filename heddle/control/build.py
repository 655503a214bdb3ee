"""A control plane from the names of its parts: for the coordinator, the simulator, and for replay.

The same settings head every event log, so that a log alone is enough to rebuild the plane that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.allocation import make_allocator
from heddle.control.dispatch import DispatchRules
from heddle.control.guard import GuardRules
from heddle.control.plane import ControlPlane
from heddle.control.preemption import PreemptionRules
from heddle.migration import make_migration_planner
from heddle.placement import make_placer
from heddle.predict import PREDICTION_ERROR, PredictorOptions, make_predictor
from heddle.scheduling import MARGIN_TOKENS, make_scheduler


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """Everything but the events that the commands depend on."""

    scheduler: str = "fcfs"
    placer: str = "sticky_least_loaded"
    allocator: str = "fixed"
    migration: str = "none"
    predictor: str = "mean_by_step"
    pool: str = "auto"
    """Parallel degrees of the workers joined by ``+``, or ``auto``."""
    slots: int = 4
    """Generations that run at once on one worker."""
    seed: int = 0
    """Of whatever decision draws at random."""
    preemption: bool = True
    preempt_margin_tokens: float = MARGIN_TOKENS
    max_preemptions_per_step: int = 2
    ageing_per_s: float = 0.0
    kv_guard: bool = True
    predictor_error: float = PREDICTION_ERROR


def build_plane(settings: PlaneSettings) -> ControlPlane:
    """A fresh control plane. Raises ``ConfigError`` that names the wrong setting."""
    return ControlPlane(
        scheduler=make_scheduler(settings.scheduler, margin_tokens=settings.preempt_margin_tokens),
        placer=make_placer(settings.placer),
        allocator=make_allocator(settings.allocator, pool=settings.pool, slots=settings.slots),
        migration=make_migration_planner(settings.migration),
        predictor=make_predictor(
            settings.predictor, PredictorOptions(error=settings.predictor_error, seed=settings.seed)
        ),
        rules=DispatchRules(
            preemption=PreemptionRules(settings.preemption, settings.max_preemptions_per_step),
            guard=GuardRules(settings.kv_guard),
            ageing_per_s=settings.ageing_per_s,
        ),
    )
