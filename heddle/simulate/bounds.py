"""A makespan that no schedule can beat: for a pool of workers, and for a budget of GPUs however divided.

**Claim.** Let ``B`` be the makespan of a simulated run without faults on workers of the given kinds. Then the
inequalities below hold. So the smallest ``B`` for which they hold is a lower bound, whatever the scheduler,
the placer, preemptions and migrations.

*A step of decoding.* A worker of degree ``d`` that decodes ``b`` generations with contexts ``c_1 .. c_b``
takes ``y_d(b, mean c)`` seconds, and each of them gets one token. Choose ``beta_d >= 0`` and ``a_d(b)`` such
that ``y_d(b, c) >= a_d(b) + beta_d * b * c`` for all ``b`` up to its slots and all ``c``: ``y`` is piecewise
linear in ``c``, so it is enough to look at the knots and at the last slope. Then the step takes ``a_d(b) +
beta_d * (c_1 + .. + c_b)`` at least. Charge every member ``a_d(b) / b + beta_d * c_k`` of it: the charges of
a step add up to no more than its length. And to each member the step takes ``a_d(b) + beta_d * c_k`` of its
own time at least.

*A trajectory.* Of the tokens of a step the first comes with its prompt, and so does the first after every
interruption; that iteration takes ``w_d``, one pass over the weights, at least, and ``1 / R_d`` for every
token computed. So a step of ``n`` tokens has at least ``n - 1 - x`` decoding steps, ``x`` being the most
interruptions that it can have, and their contexts are at least those of the first ones. Let ``D`` be all
decoding steps of the trajectory, ``C`` the sum of their contexts, and ``lead`` what must pass besides: its
arrival, its tools, its prompts (what was appended is computed once at least; the first prompt by some member
of its group, after the first of them arrived) and its resumptions, at the best ``w`` and ``R``. Within ``B``
there are ``A = B - lead`` seconds for the ``D`` steps. If ``a(b_1), .., a(b_D)`` are the ``a`` of those
steps, then ``a(b_1) + .. + a(b_D) + beta * C <= A`` with the least ``beta``. Put ``s = (A - beta * C) / D``:
the mean ``a`` is at most ``s``, so the mean of the charges ``pi_d * a_d(b) / b`` is at least ``h(s)``, ``h``
being the lower convex envelope of the points ``(a_d(b), pi_d * a_d(b) / b)``, for any prices ``pi_d >= 0``.

*All workers.* A worker of degree ``d`` has ``B`` seconds, worth ``pi_d * B``. So the sum over trajectories of
``D * h(s) + C * min pi_d * beta_d``, plus every prompt and resumption at ``min pi_d / R_d`` a token, is at
most ``B`` times the sum of ``pi_d`` over all workers. With ``pi_d = d`` that holds for every pool within a
budget of ``B`` times its GPUs. Where prompts share iterations with decoding (``PrefillMode.MIXED``) they may
cost nothing besides it: there the inequality holds for prompts alone and for decoding alone.

As ``B`` grows, ``s`` grows and ``h`` does not: once the inequalities hold they go on to hold, and bisection
finds where they begin.

*Interruptions.* The control plane interrupts a step at most ``max_preemptions_per_step`` times. An engine
whose memory may run out also retracts generations, each at most once in :data:`RETRACT_STEPS` tokens, since
it admits nobody without memory for so many steps more (with mixed iterations this holds as long as no prompt
takes more chunks than that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.allocation import SlotRule
from heddle.planning.profile import Floats
from heddle.simulate.engine import RETRACT_STEPS
from heddle.simulate.hardware import Hardware, PrefillMode
from heddle.simulate.workload import Workload, WorkTrajectory
from heddle.types import GroupId, WorkerSpec

ROUNDING = 1e-9
"""Relative; far above what the sums can be off."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds from the first arrival to the last end that no run goes below."""

    longest_s: float
    """Of the one trajectory that takes longest when it has the fastest worker for itself."""
    work_s: float
    """Of all work at the best throughput, as if no trajectory had to be in time."""
    seconds: float
    """The bound: both at once, so that who is in a hurry cannot share its worker with many."""


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """What every trajectory needs at least; arrays of one entry a trajectory."""

    lead_s: Floats
    steps: Floats
    """``D``, decoding steps."""
    contexts: Floats
    """``C``."""
    prompt_tokens: float
    """Computed at least once, over all trajectories, resumptions included."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Workers of one degree, with ``a`` and ``beta`` of the claim."""

    tp_degree: int
    floors_s: Floats
    """``a[b - 1]`` for batches from 1 to the slots."""
    beta_s: float
    weights_s: float
    prefill_tokens_per_s: float


def pool_bound(
    workload: Workload, hardware: Hardware, pool: Sequence[WorkerSpec], *, max_preemptions_per_step: int
) -> Bound:
    """The bound for these workers."""
    slots = {spec.tp_degree: 0 for spec in pool}
    for spec in pool:
        slots[spec.tp_degree] = max(slots[spec.tp_degree], spec.slots)
    counts = {degree: sum(spec.tp_degree == degree for spec in pool) for degree in slots}
    best = Bound(0.0, 0.0, 0.0)
    for kinds in _candidates(hardware, slots):
        throughput = {kind.tp_degree: _throughput(kind) for kind in kinds}
        by_degree = {degree: float(degree) for degree in slots}
        equal = dict.fromkeys(slots, 1.0)
        for prices in (throughput, by_degree, equal)[: 3 if len(slots) > 1 else 1]:
            worth = sum(prices[degree] * count for degree, count in counts.items())
            found = _bound(workload, hardware, kinds, prices, worth, max_preemptions_per_step)
            best = _tighter(best, found)
    return best


def budget_bound(
    workload: Workload, hardware: Hardware, slots: SlotRule, *, max_preemptions_per_step: int
) -> Bound:
    """The bound for any pool within the budget; ``slots`` is what the settings give a worker."""
    degrees = [engine.tp_degree for engine in hardware.engines if engine.tp_degree <= hardware.gpus]
    by_degree = {degree: hardware.slots(degree, slots.of(degree)) for degree in degrees}
    prices = {degree: float(degree) for degree in degrees}
    best = Bound(0.0, 0.0, 0.0)
    for kinds in _candidates(hardware, by_degree):
        found = _bound(workload, hardware, kinds, prices, float(hardware.gpus), max_preemptions_per_step)
        best = _tighter(best, found)
    return best


def _tighter(one: Bound, other: Bound) -> Bound:
    return Bound(
        max(one.longest_s, other.longest_s),
        max(one.work_s, other.work_s),
        max(one.seconds, other.seconds),
    )


def _candidates(hardware: Hardware, slots: Mapping[int, int]) -> list[list[_Kind]]:
    """Each degree with the steepest ``beta`` that it has, and with none."""
    steep = [_kind(hardware, degree, most, flat=False) for degree, most in slots.items()]
    flat = [_kind(hardware, degree, most, flat=True) for degree, most in slots.items()]
    return [steep, flat]


def _kind(hardware: Hardware, degree: int, slots: int, *, flat: bool) -> _Kind:
    times = hardware.engine(degree)
    curves = times.curves(slots)
    batches = np.arange(1, slots + 1, dtype=np.float64)
    # Below its first context the curve is level, so that one and 0 are knots as well as the others.
    knots = sorted({0.0, *times.contexts})
    beyond = knots[-1] + 1.0
    table = np.array([[curves.step_s(b, c) for c in (*knots, beyond)] for b in range(1, slots + 1)])
    positive = [index for index, knot in enumerate(knots) if knot > 0]
    beta = 0.0
    if not flat and positive:
        widths = np.diff([*knots, beyond])[positive[0] :]
        slopes = np.diff(table, axis=1)[:, positive[0] :] / widths
        beta = max(0.0, float((slopes / batches[:, None]).min()) * (1 - ROUNDING))
    floors = (table[:, :-1] - beta * batches[:, None] * np.array(knots)).min(axis=1)
    return _Kind(degree, floors, beta, curves.weights_s, times.prefill_tokens_per_s)


def _throughput(kind: _Kind) -> float:
    """Tokens a second at the best batch, contexts aside."""
    batches = np.arange(1, len(kind.floors_s) + 1)
    return float((batches / kind.floors_s).max())


def _bound(
    workload: Workload,
    hardware: Hardware,
    kinds: Sequence[_Kind],
    prices: Mapping[int, float],
    worth: float,
    preemptions: int,
) -> Bound:
    if not workload.trajectories:
        return Bound(0.0, 0.0, 0.0)
    demand = _demand(workload, hardware, kinds, preemptions)
    beta_time = min(kind.beta_s for kind in kinds)
    beta_charge = min(prices[kind.tp_degree] * kind.beta_s for kind in kinds)
    prompts = demand.prompt_tokens * min(prices[k.tp_degree] / k.prefill_tokens_per_s for k in kinds)
    decoding = beta_charge * float(demand.contexts.sum())
    paces, charges = _envelope(kinds, prices)
    own = demand.lead_s + beta_time * demand.contexts
    counted = demand.steps > 0

    def together(decoding_charges: float) -> float:
        """With the prompts, which may hide in mixed iterations."""
        if hardware.rules.prefill is PrefillMode.EXCLUSIVE:
            return decoding_charges + prompts
        return max(decoding_charges, prompts)

    def covers(seconds: float) -> bool:
        pace = (seconds - own[counted]) / demand.steps[counted]
        charge = np.interp(pace, paces, charges)
        return together(decoding + float(demand.steps[counted] @ charge)) <= seconds * worth

    longest = float((own + demand.steps * paces[0]).max())
    least_work_s = together(decoding + float(demand.steps.sum()) * float(charges[-1])) / worth
    joint = _first_covered(max(longest, least_work_s), covers)
    return Bound(longest * (1 - ROUNDING), least_work_s * (1 - ROUNDING), joint * (1 - ROUNDING))


def _first_covered(low: float, covers: Callable[[float], bool]) -> float:
    """Just below the smallest number of seconds, from ``low`` on, that covers all work."""
    if covers(low):
        return low
    high = 2 * low
    while not covers(high):
        low, high = high, 2 * high
    while high - low > ROUNDING * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if covers(middle) else (middle, high)
    return low


def _envelope(kinds: Sequence[_Kind], prices: Mapping[int, float]) -> tuple[Floats, Floats]:
    """The lower convex envelope ``h`` where it falls: seconds a token, ascending, and charges."""
    points = sorted(
        (float(floor), prices[kind.tp_degree] * float(floor) / batch)
        for kind in kinds
        for batch, floor in enumerate(kind.floors_s, 1)
    )
    hull: list[tuple[float, float]] = []
    for point in points:
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.array([x for x, _ in hull]), np.array([charge for _, charge in hull])


def _is_above(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether ``middle`` lies on or above the line from ``left`` to ``right``."""
    (x0, y0), (x1, y1), (x2, y2) = left, middle, right
    return (y1 - y0) * (x2 - x0) >= (y2 - y0) * (x1 - x0)


def _demand(workload: Workload, hardware: Hardware, kinds: Sequence[_Kind], preemptions: int) -> _Demand:
    weights_s = min(kind.weights_s for kind in kinds)
    prefill_s = 1.0 / max(kind.prefill_tokens_per_s for kind in kinds)
    retracts = _may_retract(workload, hardware, kinds)
    origin = min(t.arrival_s for t in workload.trajectories)
    prompts = _group_prompts(workload)
    shared = hardware.rules.share_prompts
    computed = float(sum(tokens for tokens, _ in prompts.values())) if shared else 0.0
    rows = []
    for trajectory in workload.trajectories:
        first = trajectory.steps[0].prompt_tokens
        begin = prompts[trajectory.group_id][1] if shared else trajectory.arrival_s
        lead = max(trajectory.arrival_s + weights_s, begin + first * prefill_s) - origin
        steps = contexts = context = 0
        for index, step in enumerate(trajectory.steps):
            context += step.prompt_tokens
            if index:
                lead += max(weights_s, step.prompt_tokens * prefill_s)
            if index or not shared:
                computed += step.prompt_tokens
            left = step.output_tokens - 1
            resumed = min(left, preemptions + (step.output_tokens // RETRACT_STEPS if retracts else 0))
            lead += resumed * weights_s + (step.tool_seconds or 0.0)
            left -= resumed
            computed += resumed
            steps += left
            contexts += left * (context + 1) + left * (left - 1) // 2
            context += step.output_tokens
        rows.append((lead, float(steps), float(contexts)))
    leads, decoding, contexts_ = np.array(rows).T
    return _Demand(leads, decoding, contexts_, computed)


def _group_prompts(workload: Workload) -> Mapping[GroupId, tuple[int, float]]:
    """Of each group the shortest first prompt and the first arrival."""
    found: dict[GroupId, tuple[int, float]] = {}
    for trajectory in workload.trajectories:
        tokens, arrival = trajectory.steps[0].prompt_tokens, trajectory.arrival_s
        known = found.get(trajectory.group_id, (tokens, arrival))
        found[trajectory.group_id] = min(known[0], tokens), min(known[1], arrival)
    return found


def _may_retract(workload: Workload, hardware: Hardware, kinds: Sequence[_Kind]) -> bool:
    """Whether the memory of some worker might not hold a full batch of the longest contexts."""
    longest = max(_final_context(t) for t in workload.trajectories)
    for kind in kinds:
        capacity = hardware.engine(kind.tp_degree).kv_capacity_tokens
        if capacity is not None and capacity < len(kind.floors_s) * (longest + RETRACT_STEPS):
            return True
    return False


def _final_context(trajectory: WorkTrajectory) -> int:
    return sum(step.prompt_tokens + step.output_tokens for step in trajectory.steps)
