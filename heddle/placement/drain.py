"""The best placement found on given workers when groups are run to their end.

Candidates are the best runs of the sorted lengths (workers in descending order), the even spread, and
whatever the caller has; a local search improves the best of them until it finds nothing more or time is up.
Never worse than any candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.errors import ConfigError
from heddle.planning.cost import DrainingCost, row_of
from heddle.planning.drain_groups import OutOfTime, best_runs, judged, polished, spread
from heddle.planning.plan import Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import sequence_states

PATIENCE = 20_000
"""Fruitless tries in a row after which a placement counts as finished."""


def place(
    lengths: Floats,
    degrees: Sequence[int],
    cost: DrainingCost,
    *,
    candidates: Sequence[Partition] = (),
    seed: int = 0,
    patience: int = PATIENCE,
    out_of_time: OutOfTime = lambda: False,
) -> Partition:
    """Groups for workers of ``degrees``, in descending order; ``lengths`` descend.

    Candidates are placements on the same workers, in descending order too. Raises ``ConfigError`` for no
    workers or a degree without price.
    """
    if not degrees:
        raise ConfigError("there must be at least one worker to place on")
    ordered = tuple(sorted(degrees, reverse=True))
    rows = [row_of(cost.degrees, degree) for degree in ordered]
    if len(lengths) == 0:
        return Partition(ordered, (np.empty(0, np.int64),) * len(ordered), 0.0)
    found = [judged(lengths, cost, candidate) for candidate in candidates]
    found.append(spread(lengths, cost, ordered))
    contiguous = best_runs(lengths, cost, sequence_states(rows, len(cost.degrees)), out_of_time)
    if contiguous is not None:
        spare = len(ordered) - len(contiguous.degrees)
        groups = contiguous.groups + (np.empty(0, np.int64),) * spare
        found.append(Partition(ordered, groups, contiguous.makespan_s))
    best = min(found, key=lambda candidate: candidate.makespan_s)
    return polished(lengths, cost, best, seed=seed, patience=patience, out_of_time=out_of_time)
