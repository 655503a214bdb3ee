"""How many generations run at once on a worker."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SlotRule:
    """The same for every worker, or in proportion to its degree. Raises ``ConfigError`` below one."""

    each: int
    per_degree: int | None = None
    """Slots for each GPU (or thread) of a worker; ``None``: ``each`` whatever the degree."""

    def __post_init__(self) -> None:
        for name, slots in (("slots", self.each), ("slots_per_gpu", self.per_degree)):
            if slots is not None and slots < 1:
                raise ConfigError(f"{name} must be at least 1, got {slots}")

    def of(self, tp_degree: int) -> int:
        """Slots of a worker of this degree."""
        return self.each if self.per_degree is None else self.per_degree * tp_degree
