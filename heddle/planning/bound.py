"""A makespan that no plan can beat, for any of the prices.

**Claim.** Let ``B`` be the makespan of some plan: workers of the priced degrees within the budget,
trajectories assigned to them in any way, each worker running up to its cap at once in any order, preempting
as it likes. Then the fluid reach below covers all work within ``B``. So the smallest covered ``B`` is a lower
bound.

*One worker.* While it runs ``b`` members, each gets ``1/y[b]`` tokens a second and all together ``b/y[b]``,
``y`` being its step times. Over the time ``B`` it spends shares of its time at the points ``(1/y[b],
b/y[b])`` and idle at (0, 0), so its mean ``(x, w)`` lies in their convex hull. If a member has length ``l``,
then ``x >= l/B``: it gets tokens only while it runs, at the rate ``1/y[b]`` at most, and needs ``l`` of them.
Hence the work of a worker with a member of length ``l`` is at most ``W(l) = B * max{w : (x, w) in the hull, x
>= l/B}``, which never grows with ``l``.

*All workers.* Number the workers with members by their longest one, ``f_1 >= f_2 >= ...``. Whatever precedes
``f_{k+1}`` in the descending order is on workers 1 to ``k``, so its work ``P_k`` is at most ``W_1(f_1) + ...
+ W_k(f_k)``. Let the fluid reach be ``R_0 = 0``, ``R_k = R_{k-1} + W_k(length at R_{k-1})``, a position
measured in tokens of the descending order. By induction ``R_k >= W_1(f_1) + ... + W_k(f_k) >= P_k``: the
length at ``R_{k-1} >= P_{k-1}`` is at most ``f_k``, and ``W_k`` does not grow. After the last worker, ``R``
is at least all work. Over unknown degrees keep the largest ``R`` for every number of GPUs spent; since ``R +
W(length at R)`` grows with ``R``, that loses nothing.

*Other prices.* A group's size price ``L_1 * y[k]`` is at least the time in which ``k`` members drain without
a cap, the sum of ``l_j * (y[j] - y[j-1])``. So the bound with the size price's own table as ``y`` and no cap
holds for it.
"""

from __future__ import annotations

import numpy as np

from heddle.planning.cost import DrainingCost, SizeCost
from heddle.planning.kernels import fluid
from heddle.planning.profile import Floats

ROUNDING = 1e-9
"""Relative; far above what the sums of a million lengths can be off."""


def lower_bound(lengths: Floats, gpus: int, cost: SizeCost | DrainingCost) -> float:
    """Seconds that no plan within the budget can beat at this price; ``lengths`` descend. 0.0 for none."""
    if len(lengths) == 0 or lengths[0] == 0:
        return 0.0
    caps = cost.caps if isinstance(cost, DrainingCost) else np.full(len(cost.degrees), len(lengths))
    hulls = [fluid.frontier(row, int(cap)) for row, cap in zip(cost.steps, caps, strict=True)]
    frontiers = np.zeros((len(hulls), 2, max(len(xs) for xs, _ in hulls)))
    for row, (xs, ws) in enumerate(hulls):
        frontiers[row, 0, : len(xs)] = xs
        frontiers[row, 1, : len(ws)] = ws
    counts = np.array([len(xs) for xs, _ in hulls], np.int64)
    degrees = np.array(cost.degrees, np.int64)
    work = np.concatenate([[0.0], np.cumsum(lengths)])

    def covers(bound: float) -> bool:
        return fluid.feasible(lengths, work, degrees, frontiers, counts, gpus, bound)

    low = float(lengths[0] * cost.steps[:, 1].min()) * (1 - ROUNDING)
    high = low
    while not covers(high):
        low, high = high, 2 * high
    while high - low > ROUNDING * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if covers(middle) else (middle, high)
    return low * (1 - ROUNDING)
