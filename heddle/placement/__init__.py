"""Where: which worker a trajectory lives on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import Placer
from heddle.errors import ConfigError
from heddle.placement.sticky_least_loaded import StickyLeastLoaded

PLACERS: Mapping[str, Callable[[], Placer]] = {"sticky_least_loaded": StickyLeastLoaded}


def make_placer(name: str) -> Placer:
    """The placer of this name. Raises ``ConfigError`` that lists the names there are."""
    make = PLACERS.get(name)
    if make is None:
        raise ConfigError(f"unknown placer {name!r}; choose one of {', '.join(PLACERS)}")
    return make()
