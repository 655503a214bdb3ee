"""A control plane from the names of its parts: for the coordinator, the simulator, and for replay.

The same settings head every event log, so that a log alone is enough to rebuild the plane that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heddle import migration, placement
from heddle.allocation import SlotRule
from heddle.control.allocator import AllocatorOptions, make_allocator
from heddle.control.dispatch import DispatchRules
from heddle.control.guard import GuardRules
from heddle.control.moves import MoveRules
from heddle.control.plane import ControlPlane
from heddle.control.preemption import PreemptionRules
from heddle.control.reshapes import DEFAULT_START_S, ReshapeRules
from heddle.migration import MigrationOptions, make_migration_planner
from heddle.placement import PlacerOptions, make_placer
from heddle.planning.profile import Profile
from heddle.planning.transfer_rate import TransferRate
from heddle.predict import PREDICTION_ERROR, PredictorOptions, make_predictor
from heddle.reshaping import ReshapingOptions, make_reshaper
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
    """Degrees of the workers joined by ``+``, one with ``*`` for as many as fit, or ``auto``: as ``1*``."""
    slots: int = 4
    """Generations that run at once on one worker."""
    slots_per_gpu: int | None = None
    """In their place so many for each unit of a worker's degree; ``None``: ``slots`` whatever the degree."""
    profile: Profile | None = None
    """Step times of workers by degree, for what plans by length; part of the settings, so of every log."""
    seed: int = 0
    """Of whatever decision draws at random."""
    preemption: bool = True
    preempt_margin_tokens: float = MARGIN_TOKENS
    max_preemptions_per_step: int = 2
    ageing_per_s: float = 0.0
    kv_guard: bool = True
    predictor_error: float = PREDICTION_ERROR
    transfer_tokens_per_s: float | None = None
    """How fast a prefix travels between workers, until transfers have shown it; ``None``: it does not, and
    moves compute it anew."""
    transfer_deadline_s: float = 30.0
    reshaper: str = "none"
    worker_start_s: float = DEFAULT_START_S
    """What starting a worker is expected to take, until a reshape has measured it."""


def build_plane(settings: PlaneSettings) -> ControlPlane:
    """A fresh control plane. Raises ``ConfigError`` that names the wrong setting."""
    predictor = make_predictor(
        settings.predictor, PredictorOptions(error=settings.predictor_error, seed=settings.seed)
    )
    slots = SlotRule(settings.slots, settings.slots_per_gpu)
    transfer_rate = TransferRate(settings.transfer_tokens_per_s)
    return ControlPlane(
        scheduler=make_scheduler(
            settings.scheduler, margin_tokens=settings.preempt_margin_tokens, trust=predictor.trust
        ),
        placer=make_placer(settings.placer, PlacerOptions(settings.profile, predictor.trust, settings.seed)),
        allocator=make_allocator(
            settings.allocator, AllocatorOptions(settings.pool, slots, settings.profile, settings.seed)
        ),
        migration=make_migration_planner(
            settings.migration,
            MigrationOptions(settings.profile, transfer_rate.tokens_per_s, predictor.trust),
        ),
        predictor=predictor,
        reshaper=make_reshaper(
            settings.reshaper,
            ReshapingOptions(settings.profile, slots.of, transfer_rate.tokens_per_s, predictor.trust),
        ),
        reshape_rules=ReshapeRules(slots.of, settings.worker_start_s),
        rules=DispatchRules(
            preemption=PreemptionRules(settings.preemption, settings.max_preemptions_per_step),
            guard=GuardRules(settings.kv_guard),
            ageing_per_s=settings.ageing_per_s,
        ),
        move_rules=MoveRules(settings.transfer_deadline_s),
        transfer_rate=transfer_rate,
    )


def kernel_loader(settings: PlaneSettings) -> Callable[[], None] | None:
    """Compiles the machine code that decisions run, or loads it; ``None`` where they run none."""
    named = placement.kernel_loader(settings.placer), migration.kernel_loader(settings.migration)
    loaders = [load for load in named if load is not None]

    def load_all() -> None:
        for load in loaders:
            load()

    return load_all if loaders else None
