"""The paper's placement (section 5.2): presort, then dynamic programming over runs of the sorted lengths.

Exactly its recurrence: workers take runs in the given order and none stays empty, which in a mixed pool may
cost something against ``heddle.placement.exact``. Short trajectories may be aggregated, the paper's own way
to shrink the input: those below a threshold are handled in bundles, never split between workers. O(u m log u)
for ``u`` units and ``m`` workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.cost import SizeCost, row_of
from heddle.planning.kernels import recurrence
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import runs

BUNDLE = 16
"""Short trajectories to a unit: small against any group for which the size of the input matters."""


def place(
    lengths: Floats,
    degrees: Sequence[int],
    cost: SizeCost,
    *,
    bundle_below_tokens: float = 0.0,
    bundle: int = BUNDLE,
) -> Partition:
    """Groups for workers of ``degrees``, in their order; ``lengths`` descend.

    With fewer units than workers the recurrence has no solution: then the first workers get one unit each and
    the others nothing. Raises ``ConfigError`` for no workers, a degree without price or an empty bundle.
    """
    if not degrees:
        raise ConfigError("there must be at least one worker to place on")
    if bundle < 1:
        raise ConfigError(f"a bundle must hold at least one trajectory, got {bundle}")
    rows = np.array([row_of(cost.degrees, degree) for degree in degrees], np.int64)
    positions = _units(lengths, bundle_below_tokens, bundle)
    used = min(len(degrees), len(positions) - 1)
    empty = np.empty(0, np.int64)
    if used == 0:
        return Partition(tuple(degrees), (empty,) * len(degrees), 0.0)
    makespan, ends = recurrence.solve(lengths[positions[:-1]], positions, cost.steps, rows[:used])
    return Partition(tuple(degrees), runs(ends) + (empty,) * (len(degrees) - used), float(makespan))


def _units(lengths: Floats, below: float, bundle: int) -> Indices:
    """Where units start, and the number of trajectories last."""
    long = int(np.count_nonzero(lengths >= below))
    starts = np.concatenate([np.arange(long), np.arange(long, len(lengths), bundle), [len(lengths)]])
    return starts.astype(np.int64)
