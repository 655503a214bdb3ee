"""How: which workers, of which parallel degree, the budget is made into.

``fixed`` is an allocator by itself. The planners of this package (``annealing``, ``exact``, ``drain``) know
neither profiles nor placers; ``heddle.control.allocator`` makes allocators of them.
"""

from __future__ import annotations

from heddle.allocation.fixed import Fixed
from heddle.allocation.slots import SlotRule

__all__ = ["Fixed", "SlotRule"]
