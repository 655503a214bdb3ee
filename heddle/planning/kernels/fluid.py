"""The compiled part of :mod:`heddle.planning.bound`, which has the proof."""

from __future__ import annotations

import numpy as np

from heddle.planning.kernels.compiled import compiled
from heddle.planning.plan import Indices
from heddle.planning.profile import Floats


@compiled
def frontier(steps: Floats, cap: int) -> tuple[Floats, Floats]:
    """Rates of one worker: ``(x, w)``, tokens per second of one member and of all.

    The upper concave hull of the points at batches 1 to ``cap`` and of idling (0, 0), from its highest
    point on; ``x`` ascends, ``w`` falls.
    """
    xs = np.empty(cap + 1)
    ws = np.empty(cap + 1)
    xs[0], ws[0] = 0.0, 0.0
    depth = 1
    for batch in range(cap, 0, -1):
        x = 1.0 / steps[batch]
        w = batch * x
        if x <= xs[depth - 1] and w <= ws[depth - 1]:
            continue
        while depth > 1 and (ws[depth - 1] - ws[depth - 2]) * (x - xs[depth - 2]) <= (w - ws[depth - 2]) * (
            xs[depth - 1] - xs[depth - 2]
        ):
            depth -= 1
        xs[depth], ws[depth] = x, w
        depth += 1
    peak = np.argmax(ws[:depth])
    return xs[peak:depth].copy(), ws[peak:depth].copy()


@compiled
def rate(xs: Floats, ws: Floats, x: float) -> float:
    """The most tokens per second while one member gets ``x`` or more; 0.0 if it cannot."""
    if x <= xs[0]:
        return float(ws[0])
    if x > xs[-1]:
        return 0.0
    at = np.searchsorted(xs, x)
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return float(ws[at - 1] + share * (ws[at] - ws[at - 1]))


@compiled
def feasible(
    lengths: Floats,
    work: Floats,
    degrees: Indices,
    frontiers: Floats,
    counts: Indices,
    gpus: int,
    bound: float,
) -> bool:
    """Whether the fluid reach covers all work; ``work[i]`` is the sum of the first ``i`` lengths."""
    total = work[-1]
    reach = np.zeros(gpus + 1)
    for spent in range(1, gpus + 1):
        for row in range(len(degrees)):
            if degrees[row] > spent:
                continue
            start = reach[spent - degrees[row]]
            first = lengths[min(np.searchsorted(work, start, side="right") - 1, len(lengths) - 1)]
            xs = frontiers[row, 0, : counts[row]]
            ws = frontiers[row, 1, : counts[row]]
            reach[spent] = max(reach[spent], start + bound * rate(xs, ws, first / bound))
        if reach[spent] >= total:
            return True
    return False
