"""Plans for trajectories that live somewhere already: as many moves as the makespan asks for, and no more.

The exact optimum of the price that lets what exceeds slots and KV capacity wait, and an even spread: the
better of the two, run to its end, tells which makespan can be had and who should be where. Then homes count:
groups of equal workers are exchanged until most is at home, and of all moves only those remain that bring the
workers within that makespan, what each move costs included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.planning.cost import DrainingCost, kv_aware_price, row_of
from heddle.planning.kernels import draining, residents
from heddle.planning.plan import Indices, Partition
from heddle.planning.profile import Floats
from heddle.planning.reach import optimum, pool_states, sequence_states

SLACK = 1.01
"""Times the plan's makespan that workers may take: its last percent would cost most of the moves."""
MOST_STATES = 1_000
"""Of the exact solver; where a pool has more it is filled in descending order of degrees."""


@dataclass(frozen=True, slots=True, eq=False)
class Relief:
    """New homes, and what they are for."""

    owners: Indices
    """The worker of each trajectory; shape ``(n,)``."""
    now_s: float
    """Until the last worker has drained as it is."""
    then_s: float
    """The same with these owners, the costs of moves left out."""


def relief(
    lengths: Floats, homes: Indices, degrees: Sequence[int], cost: DrainingCost, costs_s: Floats
) -> Relief:
    """New owners for trajectories at ``homes``, indices into ``degrees``, the workers in descending order.

    ``lengths`` in any order; a home of -1 is none yet, and counts as where the plan wants it; ``costs_s`` is
    the price of moving each, infinite for who must stay. Everything of shape ``(n,)``, at least one
    trajectory and one worker. Raises ``ConfigError`` for a degree without price.
    """
    rows = np.array([row_of(cost.degrees, degree) for degree in degrees], np.int64)
    order = np.argsort(-lengths, kind="stable")
    ordered, at_home = lengths[order], homes[order]
    wanted, plan_s = _plan(ordered, rows, cost)
    wanted = residents.matched(ordered, rows, at_home, wanted)
    at_home = np.where(at_home < 0, wanted, at_home)
    now_s = float(residents.ends_of(ordered, cost.steps, cost.caps, rows, at_home).max())
    if plan_s * SLACK >= now_s:
        return Relief(_in_order_of(order, at_home), now_s, now_s)
    owners = residents.relieved(
        ordered,
        cost.steps,
        cost.caps,
        rows,
        at_home,
        wanted,
        costs_s[order],
        plan_s * SLACK,
        len(ordered) + len(rows),
    )
    then_s = float(residents.ends_of(ordered, cost.steps, cost.caps, rows, owners).max())
    return Relief(_in_order_of(order, owners), now_s, then_s)


def _in_order_of(order: Indices, owners: Indices) -> Indices:
    """As they were before they were sorted."""
    back = np.empty(len(order), np.int64)
    back[order] = owners
    return back


def _plan(lengths: Floats, rows: Indices, cost: DrainingCost) -> tuple[Indices, float]:
    """The better one of two plans from nothing: owners of descending lengths, and its makespan."""
    exact = _owners(_exact(lengths, rows, cost), rows, cost, len(lengths))
    spread = draining.spread(lengths, cost.steps, cost.caps, rows)
    judged = [
        (owners, float(residents.ends_of(lengths, cost.steps, cost.caps, rows, owners).max()))
        for owners in (exact, spread)
    ]
    return min(judged, key=lambda plan: plan[1])


def _exact(lengths: Floats, rows: Indices, cost: DrainingCost) -> Partition:
    width = len(cost.degrees)
    states = np.prod(np.bincount(rows, minlength=width) + 1)
    makers = pool_states if states <= MOST_STATES else sequence_states
    predecessors = makers(rows.tolist(), width)
    return optimum(lengths, kv_aware_price(cost), predecessors, np.ones(len(predecessors), np.int64))


def _owners(plan: Partition, rows: Indices, cost: DrainingCost, members: int) -> Indices:
    """Workers for the groups of a plan, which names their degrees only."""
    free: dict[int, list[int]] = {}
    for worker in reversed(range(len(rows))):
        free.setdefault(int(rows[worker]), []).append(worker)
    owners = np.empty(members, np.int64)
    for degree, group in zip(plan.degrees, plan.groups, strict=True):
        owners[group] = free[row_of(cost.degrees, degree)].pop()
    return owners
