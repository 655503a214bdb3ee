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

*Memory.* Running generations hold their contexts in the KV capacity ``K_d`` of their worker; of a prompt that
a group shares, each only what follows it. Two or more hold at most ``K_d`` together, and one by itself may
hold more (it is let through). So a step may as well charge each member its length times ``min(c_k, K_d) /
K_d``, and the sum of these over all tokens is at most the same worth. With mixed iterations memory may be
exceeded for a while, and nothing is claimed.

As ``B`` grows, ``s`` grows and ``h`` does not: once the inequalities hold they go on to hold, and bisection
finds where they begin.

*Interruptions.* The control plane interrupts a step at most ``max_preemptions_per_step`` times. An engine
whose memory may run out also retracts generations, each at most once in :data:`RETRACT_STEPS` tokens, since
it admits nobody without memory for so many steps more (with mixed iterations this holds as long as no prompt
takes more chunks than that).
"""

from __future__ import annotations

import math
from collections import Counter
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


NOTHING = Bound(0.0, 0.0, 0.0)
"""Of an empty workload."""


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
    held_tokens: float
    """Contexts without shared prompts, none counted beyond the smallest memory, over all decoding steps."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Workers of one degree, with ``a`` and ``beta`` of the claim."""

    tp_degree: int
    floors_s: Floats
    """``a[b - 1]`` for batches from 1 to the slots."""
    beta_s: float
    weights_s: float
    prefill_tokens_per_s: float
    kv_capacity_tokens: float
    """Infinite where there is no limit."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The best that any worker does, and how often a step may be interrupted."""

    weights_s: float
    prefill_s: float
    """Of one token."""
    memory: float
    """The smallest."""
    preemptions: int
    retracts: bool


def pool_bound(
    workload: Workload, hardware: Hardware, pool: Sequence[WorkerSpec], *, max_preemptions_per_step: int
) -> Bound:
    """The bound for these workers."""
    if not workload.trajectories:
        return NOTHING
    slots = {spec.tp_degree: 0 for spec in pool}
    for spec in pool:
        slots[spec.tp_degree] = max(slots[spec.tp_degree], spec.slots)
    counts = {degree: sum(spec.tp_degree == degree for spec in pool) for degree in slots}
    best = NOTHING
    for kinds in _candidates(hardware, slots):
        demand = _demand(workload, hardware, kinds, max_preemptions_per_step)
        throughput = {kind.tp_degree: _throughput(kind) for kind in kinds}
        by_degree = {degree: float(degree) for degree in slots}
        equal = dict.fromkeys(slots, 1.0)
        for prices in (throughput, by_degree, equal)[: 3 if len(slots) > 1 else 1]:
            worth = sum(prices[degree] * count for degree, count in counts.items())
            best = _tighter(best, _bound(demand, hardware.rules.prefill, kinds, prices, worth))
    return best


def budget_bound(
    workload: Workload, hardware: Hardware, slots: SlotRule, *, max_preemptions_per_step: int
) -> Bound:
    """The bound for any pool within the budget; ``slots`` is what the settings give a worker."""
    if not workload.trajectories:
        return NOTHING
    degrees = [engine.tp_degree for engine in hardware.engines if engine.tp_degree <= hardware.gpus]
    by_degree = {degree: hardware.slots(degree, slots.of(degree)) for degree in degrees}
    prices = {degree: float(degree) for degree in degrees}
    best = NOTHING
    for kinds in _candidates(hardware, by_degree):
        demand = _demand(workload, hardware, kinds, max_preemptions_per_step)
        best = _tighter(best, _bound(demand, hardware.rules.prefill, kinds, prices, float(hardware.gpus)))
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
    if floors.min() <= 0:
        return _kind(hardware, degree, slots, flat=True)
    memory = math.inf if times.kv_capacity_tokens is None else float(times.kv_capacity_tokens)
    return _Kind(degree, floors, beta, curves.weights_s, times.prefill_tokens_per_s, memory)


def _throughput(kind: _Kind) -> float:
    """Tokens a second at the best batch, contexts aside."""
    batches = np.arange(1, len(kind.floors_s) + 1)
    return float((batches / kind.floors_s).max())


def _bound(
    demand: _Demand, prefill: PrefillMode, kinds: Sequence[_Kind], prices: Mapping[int, float], worth: float
) -> Bound:
    """For workers that are ``worth`` so much a second at these prices."""
    beta_time = min(kind.beta_s for kind in kinds)
    beta_charge = min(prices[kind.tp_degree] * kind.beta_s for kind in kinds)
    prompts = demand.prompt_tokens * min(prices[k.tp_degree] / k.prefill_tokens_per_s for k in kinds)
    decoding = beta_charge * float(demand.contexts.sum())
    held = 0.0
    if prefill is PrefillMode.EXCLUSIVE:
        held_s = min(prices[k.tp_degree] * float(k.floors_s.min()) / k.kv_capacity_tokens for k in kinds)
        held = demand.held_tokens * held_s
    paces, charges = _envelope(kinds, prices)
    own = demand.lead_s + beta_time * demand.contexts
    counted = demand.steps > 0

    def together(decoding_charges: float) -> float:
        """By slots or by memory, with the prompts, which may hide in mixed iterations."""
        if prefill is PrefillMode.EXCLUSIVE:
            return max(decoding_charges, held) + prompts
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
    best = _Best(
        weights_s=min(kind.weights_s for kind in kinds),
        prefill_s=1.0 / max(kind.prefill_tokens_per_s for kind in kinds),
        memory=min(kind.kv_capacity_tokens for kind in kinds),
        preemptions=preemptions,
        retracts=_may_retract(workload, hardware, kinds),
    )
    shares = hardware.rules.share_prompts
    prompts = _group_prompts(workload)
    sizes = Counter(trajectory.group_id for trajectory in workload.trajectories)
    common = {group: tokens for group, (tokens, _) in prompts.items() if shares and sizes[group] > 1}
    origin = min(trajectory.arrival_s for trajectory in workload.trajectories)
    needs = []
    for trajectory in workload.trajectories:
        arrival_s = trajectory.arrival_s - origin
        begin_s = prompts[trajectory.group_id][1] - origin if trajectory.group_id in common else arrival_s
        needs.append(_needs(trajectory, arrival_s, begin_s, common.get(trajectory.group_id, 0), best))
    leads, steps, contexts, computed, held = np.array(needs).T
    return _Demand(leads, steps, contexts, float(computed.sum()) + sum(common.values()), float(held.sum()))


def _needs(
    trajectory: WorkTrajectory, arrival_s: float, begin_s: float, common_tokens: int, best: _Best
) -> tuple[float, float, float, float, float]:
    """Lead, decoding steps, their contexts, tokens computed for it alone, contexts held by it alone.

    Of its first prompt ``common_tokens`` are its group's, and may be computed from ``begin_s`` on.
    """
    first = trajectory.steps[0].prompt_tokens
    lead = max(arrival_s + best.weights_s, begin_s + first * best.prefill_s)
    lead -= max(best.weights_s, first * best.prefill_s)
    computed, steps, contexts, context, held = -float(common_tokens), 0, 0, 0, 0.0
    for step in trajectory.steps:
        context += step.prompt_tokens
        left = step.output_tokens - 1
        retracted = step.output_tokens // RETRACT_STEPS if best.retracts else 0
        resumed = min(left, best.preemptions + retracted)
        left -= resumed
        computed += step.prompt_tokens + resumed
        lead += max(best.weights_s, step.prompt_tokens * best.prefill_s)
        lead += resumed * best.weights_s + (step.tool_seconds or 0.0)
        steps += left
        contexts += left * (context + 1) + left * (left - 1) // 2
        held += _held(context - common_tokens, left, best.memory)
        context += step.output_tokens
    return lead, float(steps), float(contexts), computed, held


def _held(first: int, steps: int, memory: float) -> float:
    """Sum of ``steps`` contexts that grow by one from ``first``, none counted beyond ``memory``."""
    within = int(min(max(0.0, memory - first), steps)) if math.isfinite(memory) else steps
    inside = within * first + within * (within - 1) / 2
    return inside + (steps - within) * memory if within < steps else inside


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
