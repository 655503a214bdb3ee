"""The pool that the configuration spells out: ``1+1``, ``2``, or ``auto`` for one unit each."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.errors import ConfigError
from heddle.types import WorkerId, WorkerSpec

AUTO = "auto"


class Fixed:
    """Workers of the given degrees, named ``w0``, ``w1``, ..., with the same number of slots each."""

    name = "fixed"

    def __init__(self, pool: str, slots: int) -> None:
        """Raises ``ConfigError`` where ``pool`` is no list of degrees or ``slots`` is below one."""
        if slots < 1:
            raise ConfigError(f"slots must be at least 1, got {slots}")
        self._degrees = None if pool == AUTO else _parse_pool(pool)
        self._slots = slots

    def allocate(self, budget: int, expected_tokens: Sequence[int] = ()) -> tuple[WorkerSpec, ...]:
        """The same whatever is expected. Raises ``ConfigError`` where the budget is too small for the pool.

        Workers of degree one may outnumber the budget: on a CPU they share its cores fairly, whereas a
        worker of higher degree that shares a core with anybody stalls all of its threads.
        """
        if budget < 1:
            raise ConfigError(f"the budget must be at least 1, got {budget}")
        degrees = (1,) * budget if self._degrees is None else self._degrees
        if sum(degrees) > budget and max(degrees) > 1:
            pool = "+".join(map(str, degrees))
            raise ConfigError(
                f"pool {pool} needs {sum(degrees)} units but there are {budget}; only a pool whose workers "
                f"all have degree 1 may exceed the budget"
            )
        return tuple(
            WorkerSpec(WorkerId(f"w{index}"), degree, self._slots) for index, degree in enumerate(degrees)
        )


def _parse_pool(pool: str) -> tuple[int, ...]:
    parts = [part.strip() for part in pool.split("+")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"pool {pool!r} must be {AUTO!r} or degrees joined by '+', such as '1+1' or '2'")
    return tuple(int(part) for part in parts)
