"""Where: which worker a trajectory lives on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import Placer
from heddle.errors import ConfigError
from heddle.placement import length_aware
from heddle.placement.least_load import LeastLoad
from heddle.placement.length_aware import LengthAware
from heddle.placement.options import PlacerOptions
from heddle.placement.pinned import Pinned
from heddle.placement.pinned_rebalance import PinnedRebalance
from heddle.placement.sticky_least_loaded import StickyLeastLoaded
from heddle.placement.sticky_margin import StickyMargin

__all__ = ["PLACERS", "PlacerOptions", "make_placer"]

PLACERS: Mapping[str, Callable[[PlacerOptions], Placer]] = {
    "sticky_least_loaded": lambda options: StickyLeastLoaded(),
    "sticky_margin": lambda options: StickyMargin(),
    "least_load": lambda options: LeastLoad(),
    "pinned": lambda options: Pinned(),
    "pinned_rebalance": lambda options: PinnedRebalance(),
    "presorted_dp": lambda options: LengthAware(
        "presorted_dp", length_aware.presorted_dp, options, hedged=False
    ),
    "exact": lambda options: LengthAware("exact", length_aware.exact, options),
    "drain": lambda options: LengthAware("drain", length_aware.drain, options),
}


_NO_OPTIONS = PlacerOptions()


def make_placer(name: str, options: PlacerOptions = _NO_OPTIONS) -> Placer:
    """The placer of this name. Raises ``ConfigError`` that lists the names there are, or what is missing."""
    make = PLACERS.get(name)
    if make is None:
        raise ConfigError(f"unknown placer {name!r}; choose one of {', '.join(PLACERS)}")
    return make(options)
