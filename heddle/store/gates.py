"""Admission gates: what a finished record must satisfy before a trainer may see it.

Each gate is named and pure; :func:`check` runs them all and returns every violation. What becomes of a
record that fails is decided by the caller. A gate that cannot apply (no step was constrained, nothing was
sampled) passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import compress, pairwise
from operator import not_

from heddle.records import FailureKind, Trajectory
from heddle.types import SamplingParams, TrajectoryStatus

TIMING_RELATIVE_SLACK = 0.01
TIMING_ABSOLUTE_SLACK_S = 0.005
"""Clocks are read a few times per step; on a trajectory of milliseconds 1 % would be less than that."""

MAX_LOGPROB = 0.1
"""A logprob is at most 0, but log-softmax in 16-bit arithmetic rounds to a little more."""

MIN_TOKENS_TO_SUSPECT = 64
"""So many sampled tokens in a row, *all* of logprob exactly 0.0, are taken for missing logprobs.

Single exact zeros are honest: in 32-bit arithmetic every token of probability above about 1 - 1e-6 has one,
and greedy decoding, a repeating model or copied text give many. But each of 64 tokens, the first one of the
generation included, does not happen where the model had anything to decide. Tokens of constrained steps
are not judged, nor is anything sampled at temperature 0, for which some engines report 0.0 throughout.
"""


class Gate(StrEnum):
    """The gates, by the name under which violations are counted."""

    IDS = "ids"
    """Identities are not empty; neither are the prompt and the response of one that completed."""
    LENGTHS = "lengths"
    MASK = "mask"
    """Values 0 and 1 only; as many ones as the steps say tokens were sampled."""
    LOGPROBS = "logprobs"
    """Finite, no more than rounding above 0, exactly 0.0 where the mask is 0."""
    ZERO_LOGPROBS = "zero_logprobs"
    WEIGHT_VERSIONS = "weight_versions"
    VERSION_SPAN = "version_span"
    """No more than a configured number of weight versions lie between its oldest and its newest token."""
    STOP_REASON = "stop_reason"
    FAILURE = "failure"
    """Present exactly where the status is ``failed``; an infra failure has no reward."""
    STEPS = "steps"
    """Indices 0, 1, 2 ...; counts are not negative."""
    PREFIX = "prefix"
    """Each step saw the prompt and all that came before it, and its tokens follow right there."""
    SAMPLING = "sampling"
    """Engines sampled by the parameters that were asked for, as far as they tell."""
    TIMING = "timing"
    REWARD = "reward"


@dataclass(frozen=True, slots=True)
class GateViolation:
    """One reason why a record must not be admitted."""

    gate: Gate
    message: str


ECHO_TOLERANCE = 1e-5
"""Relative; engines keep parameters in 32 bits."""


def sampled_as_asked(asked: SamplingParams, echo: SamplingParams | None) -> bool:
    """Whether an engine's echo agrees with the request. Seeds differ by step and are not compared."""
    return echo is None or (
        asked.top_k == echo.top_k
        and math.isclose(asked.temperature, echo.temperature, rel_tol=ECHO_TOLERANCE)
        and math.isclose(asked.top_p, echo.top_p, rel_tol=ECHO_TOLERANCE)
        and math.isclose(asked.min_p, echo.min_p, rel_tol=ECHO_TOLERANCE)
    )


def check(trajectory: Trajectory, max_version_span: int | None = None) -> list[GateViolation]:
    """Every violation, in the order of the gates; empty for a record that may be admitted."""
    violations = [
        GateViolation(gate, message) for gate, judge in _JUDGES.items() for message in judge(trajectory)
    ]
    if max_version_span is not None:
        too_far = _version_span(trajectory, max_version_span)
        violations += [GateViolation(Gate.VERSION_SPAN, message) for message in too_far]
    if _STRUCTURE.isdisjoint(violation.gate for violation in violations):
        violations += [GateViolation(Gate.PREFIX, message) for message in _prefix(trajectory)]
    return violations


def _ids(t: Trajectory) -> Iterator[str]:
    for name, value in (
        ("trajectory_id", t.trajectory_id),
        ("batch_id", t.batch_id),
        ("group_id", t.group_id),
        ("prompt_id", t.prompt_id),
    ):
        if not value:
            yield f"{name} is empty"
    if t.status is TrajectoryStatus.COMPLETED and not t.response_ids:
        yield "response_ids is empty though the trajectory completed"
    if t.response_ids and not t.prompt_ids:
        yield "prompt_ids is empty though there is a response"
    if min(t.prompt_ids, default=0) < 0 or min(t.response_ids, default=0) < 0:
        yield "a token id is negative"


def _lengths(t: Trajectory) -> Iterator[str]:
    lengths = {
        "response_ids": len(t.response_ids),
        "response_mask": len(t.response_mask),
        "response_logprobs": len(t.response_logprobs),
        "weight_versions": len(t.weight_versions),
    }
    if len(set(lengths.values())) > 1:
        yield "lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items())


def _mask(t: Trajectory) -> Iterator[str]:
    ones, zeros = t.response_mask.count(1), t.response_mask.count(0)
    if ones + zeros != len(t.response_mask):
        wrong = next(place for place, value in enumerate(t.response_mask) if value not in (0, 1))
        yield f"response_mask[{wrong}] is {t.response_mask[wrong]}"
        return
    sampled = sum(step.output_tokens for step in t.steps)
    if ones != sampled:
        yield f"the mask marks {ones} sampled tokens, the steps sampled {sampled}"
    forced = sum(step.forced_tokens for step in t.steps)
    unsampled = zeros
    if unsampled < forced:
        yield f"the mask leaves {unsampled} tokens unsampled, the steps forced {forced}"


def _logprobs(t: Trajectory) -> Iterator[str]:
    logprobs = t.response_logprobs
    given = compress(logprobs, map(not_, t.response_mask))
    if math.isfinite(sum(logprobs)) and max(logprobs, default=0.0) <= MAX_LOGPROB and not any(given):
        return  # thousands of tokens in a few microseconds; only a bad record is looked at one by one
    for place, (mask, logprob) in enumerate(zip(t.response_mask, logprobs, strict=False)):
        if not math.isfinite(logprob) or logprob > MAX_LOGPROB:
            yield f"response_logprobs[{place}] is {logprob}"
            return  # the first one tells; a thousand more would only fill the quarantine
        if mask == 0 and logprob != 0.0:
            yield f"response_logprobs[{place}] is {logprob} where the mask is 0"
            return


def _zero_logprobs(t: Trajectory) -> Iterator[str]:
    if t.sampling.temperature == 0.0:
        return
    sampled = list(compress(t.response_logprobs, t.response_mask))
    if len(sampled) != sum(step.output_tokens for step in t.steps):
        return  # the mask gate has it; which token belongs to which step is unknown
    free: list[float] = []
    start = 0
    for step in t.steps:
        own = sampled[start : start + step.output_tokens]
        start += step.output_tokens
        if step.constrained:
            continue
        free += own
        if _all_zero(own):
            yield f"step {step.step_index}: all {len(own)} sampled tokens have logprob exactly 0.0"
            return
    if _all_zero(free):
        yield f"all {len(free)} freely sampled tokens have logprob exactly 0.0"


def _all_zero(logprobs: list[float]) -> bool:
    return len(logprobs) >= MIN_TOKENS_TO_SUSPECT and not any(logprobs)


def _weight_versions(t: Trajectory) -> Iterator[str]:
    if min(t.weight_versions, default=0) < 0:
        yield "a weight version is negative"
    versions = list(compress(t.weight_versions, t.response_mask))
    if versions == sorted(versions):
        return
    earlier, later = next((a, b) for a, b in pairwise(versions) if b < a)
    yield f"weight version {later} follows {earlier}"


def _version_span(t: Trajectory, most: int) -> Iterator[str]:
    versions = list(compress(t.weight_versions, t.response_mask))
    span = max(versions, default=0) - min(versions, default=0)
    if span > most:
        yield f"weights {min(versions)} to {max(versions)} sampled it; they may be {most} versions apart"


def _stop_reason(t: Trajectory) -> Iterator[str]:
    if t.status is not t.stop_reason.status:
        yield f"status is {t.status}, but {t.stop_reason} means {t.stop_reason.status}"


def _failure(t: Trajectory) -> Iterator[str]:
    if t.status is TrajectoryStatus.FAILED and t.failure is None:
        yield "the trajectory failed without a failure"
    if t.status is not TrajectoryStatus.FAILED and t.failure is not None:
        yield f"status is {t.status}, yet there is a failure in {t.failure.stage}"
    if t.failure is not None and t.failure.kind is FailureKind.INFRA and t.reward is not None:
        yield f"an infrastructure failure has reward {t.reward}"


def _steps(t: Trajectory) -> Iterator[str]:
    indices = [step.step_index for step in t.steps]
    if indices != list(range(len(indices))):
        yield f"step indices are {indices}"
    for step in t.steps:
        if min(step.prompt_tokens, step.cached_tokens, step.output_tokens, step.forced_tokens) < 0:
            yield f"step {step.step_index} has a negative count of tokens"


def _prefix(t: Trajectory) -> Iterator[str]:
    """Found by lengths: where a step's prompt ended, there its sampled tokens must lie."""
    earliest = len(t.prompt_ids)
    for step in t.steps:
        start, end = step.prompt_tokens, step.prompt_tokens + step.output_tokens
        if start < earliest + step.forced_tokens:
            yield f"step {step.step_index} saw {start} tokens, there were {earliest + step.forced_tokens}"
            return
        own = t.response_mask[start - len(t.prompt_ids) : end - len(t.prompt_ids)]
        if own != [1] * step.output_tokens:
            yield f"step {step.step_index} saw {start} tokens; what it sampled does not follow there"
            return
        earliest = end


def _sampling(t: Trajectory) -> Iterator[str]:
    for step in t.steps:
        if not sampled_as_asked(t.sampling, step.echoed_sampling):
            yield f"step {step.step_index} was sampled by {step.echoed_sampling}, asked for was {t.sampling}"
            return


def _timing(t: Trajectory) -> Iterator[str]:
    parts: dict[str, float] = asdict(t.timing)
    for name, value in parts.items():
        if not math.isfinite(value) or value < -TIMING_ABSOLUTE_SLACK_S:
            yield f"timing.{name} is {value}"
            return
    slack = TIMING_RELATIVE_SLACK * t.timing.wall + TIMING_ABSOLUTE_SLACK_S
    if abs(t.timing.parts - t.timing.wall) > slack:
        yield f"the parts add up to {t.timing.parts:.4f} s, the wall time is {t.timing.wall:.4f} s"


def _reward(t: Trajectory) -> Iterator[str]:
    if t.reward is not None and not math.isfinite(t.reward):
        yield f"reward is {t.reward}"


_JUDGES: dict[Gate, Callable[[Trajectory], Iterator[str]]] = {
    Gate.IDS: _ids,
    Gate.LENGTHS: _lengths,
    Gate.MASK: _mask,
    Gate.LOGPROBS: _logprobs,
    Gate.WEIGHT_VERSIONS: _weight_versions,
    Gate.STOP_REASON: _stop_reason,
    Gate.FAILURE: _failure,
    Gate.STEPS: _steps,
    Gate.SAMPLING: _sampling,
    Gate.TIMING: _timing,
    Gate.REWARD: _reward,
    Gate.ZERO_LOGPROBS: _zero_logprobs,
}

_STRUCTURE = frozenset({Gate.IDS, Gate.LENGTHS, Gate.MASK, Gate.STEPS})
"""Where one of these is violated, nothing says which tokens belong to which step."""
