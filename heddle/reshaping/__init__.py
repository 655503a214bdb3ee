"""Whether the pool takes another shape while the last trajectories of a batch run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import Reshaper
from heddle.errors import ConfigError
from heddle.reshaping.none import NoReshaping
from heddle.reshaping.options import ReshapingOptions

__all__ = ["RESHAPERS", "ReshapingOptions", "make_reshaper"]


def _tail(options: ReshapingOptions) -> Reshaper:
    from heddle.reshaping.tail import TailReshaper  # imported where it is chosen: it plans with arrays

    return TailReshaper(options)


RESHAPERS: Mapping[str, Callable[[ReshapingOptions], Reshaper]] = {
    "none": lambda options: NoReshaping(),
    "tail": _tail,
}


def make_reshaper(name: str, options: ReshapingOptions) -> Reshaper:
    """The reshaper of this name. Raises ``ConfigError`` that lists the names, or says what is missing."""
    make = RESHAPERS.get(name)
    if make is None:
        raise ConfigError(f"unknown reshaper {name!r}; choose one of {', '.join(RESHAPERS)}")
    return make(options)
