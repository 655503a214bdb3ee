"""The pool that the configuration spells out: ``1+1``, ``2``, ``8*`` for as many as fit, or ``auto``."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.allocation.slots import SlotRule
from heddle.errors import ConfigError
from heddle.types import WorkerId, WorkerSpec

AUTO = "auto"
"""One worker for each unit of the budget."""
AS_MANY_AS_FIT = "*"


class Fixed:
    """Workers of the given degrees, named ``w0``, ``w1``, ..."""

    name = "fixed"

    def __init__(self, pool: str, slots: SlotRule) -> None:
        """Raises ``ConfigError`` where ``pool`` is no list of degrees."""
        self._pool = pool
        self._repeated = 1 if pool == AUTO else _repeated_degree(pool)
        self._degrees = () if self._repeated is not None else _parse_pool(pool)
        self._slots = slots

    def allocate(self, budget: int, expected_tokens: Sequence[int] = ()) -> tuple[WorkerSpec, ...]:
        """The same whatever is expected. Raises ``ConfigError`` where the budget is too small for the pool.

        Workers of degree one may outnumber the budget: on a CPU they share its cores fairly, whereas a
        worker of higher degree that shares a core with anybody stalls all of its threads.
        """
        if budget < 1:
            raise ConfigError(f"the budget must be at least 1, got {budget}")
        degrees = self._degrees
        if self._repeated is not None:
            degrees = (self._repeated,) * max(1, budget // self._repeated)
        if sum(degrees) > budget and max(degrees) > 1:
            raise ConfigError(
                f"pool {self._pool} needs {sum(degrees)} units but there are {budget}; only a pool whose "
                f"workers all have degree 1 may exceed the budget"
            )
        return tuple(
            WorkerSpec(WorkerId(f"w{index}"), degree, self._slots.of(degree))
            for index, degree in enumerate(degrees)
        )


def _repeated_degree(pool: str) -> int | None:
    degree = pool.strip().removesuffix(AS_MANY_AS_FIT)
    return int(degree) if pool.strip().endswith(AS_MANY_AS_FIT) and _is_degree(degree) else None


def _parse_pool(pool: str) -> tuple[int, ...]:
    parts = [part.strip() for part in pool.split("+")]
    if not all(_is_degree(part) for part in parts):
        raise ConfigError(
            f"pool {pool!r} must be {AUTO!r}, degrees joined by '+' such as '1+1' or '2', or one with "
            f"{AS_MANY_AS_FIT!r} for as many as fit, such as '8{AS_MANY_AS_FIT}'"
        )
    return tuple(int(part) for part in parts)


def _is_degree(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
