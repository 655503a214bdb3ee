"""Where: which worker a trajectory lives on. What plans with arrays is imported where it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from heddle.control.ports import Placer
from heddle.errors import ConfigError
from heddle.placement.least_load import LeastLoad
from heddle.placement.options import PlacerOptions
from heddle.placement.pinned import Pinned
from heddle.placement.pinned_rebalance import PinnedRebalance
from heddle.placement.sticky_group import StickyGroup
from heddle.placement.sticky_least_loaded import StickyLeastLoaded
from heddle.placement.sticky_margin import StickyMargin

if TYPE_CHECKING:
    from heddle.placement.length_aware import LengthAware, Solver

__all__ = ["PLACERS", "PlacerOptions", "kernel_loader", "make_placer"]

PLACERS: Mapping[str, Callable[[PlacerOptions], Placer]] = {
    "sticky_least_loaded": lambda options: StickyLeastLoaded(),
    "sticky_group": lambda options: StickyGroup(),
    "sticky_margin": lambda options: StickyMargin(),
    "least_load": lambda options: LeastLoad(),
    "pinned": lambda options: Pinned(),
    "pinned_rebalance": lambda options: PinnedRebalance(),
    "presorted_dp": lambda options: _length_aware("presorted_dp", options, hedged=False),
    "exact": lambda options: _length_aware("exact", options),
    "drain": lambda options: _length_aware("drain", options),
}

_SOLVERS = ("presorted_dp", "exact", "drain")

_NO_OPTIONS = PlacerOptions()


def make_placer(name: str, options: PlacerOptions = _NO_OPTIONS) -> Placer:
    """The placer of this name. Raises ``ConfigError`` that lists the names there are, or what is missing."""
    make = PLACERS.get(name)
    if make is None:
        raise ConfigError(f"unknown placer {name!r}; choose one of {', '.join(PLACERS)}")
    return make(options)


def kernel_loader(name: str) -> Callable[[], None] | None:
    """Compiles the machine code that this placer runs, or loads it; ``None`` where it runs none.

    Takes seconds at first, and the first plan would take them otherwise: for a thread, before that.
    """
    if name not in _SOLVERS:
        return None
    from heddle.placement import length_aware

    return partial(length_aware.load_kernels, _solver(name))


def _length_aware(name: str, options: PlacerOptions, *, hedged: bool = True) -> LengthAware:
    from heddle.placement.length_aware import LengthAware

    return LengthAware(name, _solver(name), options, hedged=hedged)


def _solver(name: str) -> Solver:
    from heddle.placement import length_aware

    solvers = {
        "presorted_dp": length_aware.presorted_dp,
        "exact": length_aware.exact,
        "drain": length_aware.drain,
    }
    return solvers[name]
