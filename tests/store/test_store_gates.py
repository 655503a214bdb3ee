"""Each admission gate lets a good record through and names what is wrong with a bad one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from store_builders import make_step, make_trajectory

from heddle.records import Failure, FailureKind, Timing, Trajectory
from heddle.store.gates import MIN_TOKENS_TO_SUSPECT, Gate, check
from heddle.types import SamplingParams, StopReason, TrajectoryStatus

GOOD = make_trajectory()
FAILED = replace(
    GOOD,
    status=TrajectoryStatus.FAILED,
    stop_reason=StopReason.ENGINE_FAILED,
    failure=Failure(FailureKind.INFRA, "generate", "the engine died"),
    reward=None,
)


ASKED = SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.1, seed=3)


def sampled(echo: SamplingParams | None) -> Trajectory:
    """A good record whose last step was sampled as this echo says."""
    return replace(GOOD, sampling=ASKED, steps=[make_step(0), replace(make_step(1), echoed_sampling=echo)])


def gates_of(trajectory: Trajectory) -> list[Gate]:
    """The gates that refuse it."""
    return [violation.gate for violation in check(trajectory)]


def make_generation(logprobs: list[float], *, constrained: bool = False, steps: int = 1) -> Trajectory:
    """A record whose steps sampled exactly these logprobs, in equal parts."""
    length = len(logprobs)
    return replace(
        GOOD,
        response_ids=[5] * length,
        response_mask=[1] * length,
        response_logprobs=logprobs,
        weight_versions=[0] * length,
        steps=[
            replace(
                make_step(n, output_tokens=length // steps, constrained=constrained),
                prompt_tokens=len(GOOD.prompt_ids) + n * (length // steps),
            )
            for n in range(steps)
        ],
    )


@pytest.mark.parametrize(
    "good",
    [
        GOOD,
        FAILED,
        replace(
            FAILED, response_ids=[], response_mask=[], response_logprobs=[], weight_versions=[], steps=[]
        ),
        replace(
            FAILED,
            failure=Failure(FailureKind.DATA, "reward", "the environment raised"),
            stop_reason=StopReason.TOOL_FAILED,
            reward=0.0,
        ),
        replace(GOOD, status=TrajectoryStatus.TRUNCATED, stop_reason=StopReason.MAX_TOKENS),
        replace(GOOD, reward=None),
        replace(GOOD, timing=Timing(queue=0.001, wall=0.005)),
        replace(GOOD, timing=Timing(queue=99.5, wall=100.0)),
        replace(GOOD, weight_versions=[7, 7, 7, 7, 7, 8, 8, 8, 8, 8]),
    ],
)
def test_a_good_record_passes(good: Trajectory) -> None:
    """Nothing is refused that a correct agent loop can produce."""
    assert check(good) == []


@pytest.mark.parametrize(
    ("gate", "bad"),
    [
        (Gate.IDS, replace(GOOD, group_id="")),
        (Gate.IDS, replace(GOOD, prompt_ids=[])),
        (Gate.IDS, replace(GOOD, prompt_ids=[-1])),
        (Gate.LENGTHS, replace(GOOD, weight_versions=[7] * 9)),
        (Gate.MASK, replace(GOOD, response_mask=[1, 1, 2, 0, 0, 1, 1, 1, 0, 0])),
        (Gate.MASK, replace(GOOD, steps=[make_step(0), make_step(1, output_tokens=4)])),
        (Gate.MASK, replace(GOOD, steps=[replace(make_step(0), forced_tokens=5), make_step(1)])),
        (Gate.LOGPROBS, replace(GOOD, response_logprobs=[math.nan, *GOOD.response_logprobs[1:]])),
        (Gate.LOGPROBS, replace(GOOD, response_logprobs=[-math.inf, *GOOD.response_logprobs[1:]])),
        (Gate.LOGPROBS, replace(GOOD, response_logprobs=[0.7, *GOOD.response_logprobs[1:]])),
        (Gate.LOGPROBS, replace(GOOD, response_logprobs=[-0.1] * 10)),
        (Gate.WEIGHT_VERSIONS, replace(GOOD, weight_versions=[-1] * 10)),
        (Gate.WEIGHT_VERSIONS, replace(GOOD, weight_versions=[8] * 5 + [7] * 5)),
        (Gate.STOP_REASON, replace(GOOD, stop_reason=StopReason.MAX_STEPS)),
        (Gate.FAILURE, replace(FAILED, failure=None)),
        (Gate.FAILURE, replace(GOOD, failure=Failure(FailureKind.DATA, "reward", "raised"))),
        (Gate.FAILURE, replace(FAILED, reward=0.0)),
        (Gate.STEPS, replace(GOOD, steps=[make_step(1), make_step(0)])),
        (Gate.STEPS, replace(GOOD, steps=[make_step(0), replace(make_step(1), cached_tokens=-1)])),
        (Gate.PREFIX, replace(GOOD, steps=[make_step(0), replace(make_step(1), prompt_tokens=8)])),
        (Gate.PREFIX, replace(GOOD, steps=[make_step(0), replace(make_step(1), prompt_tokens=10)])),
        (Gate.PREFIX, replace(GOOD, steps=[replace(make_step(0), prompt_tokens=0), make_step(1)])),
        (Gate.PREFIX, replace(GOOD, steps=[make_step(0), replace(make_step(1), prompt_tokens=4)])),
        (Gate.PREFIX, replace(GOOD, prompt_ids=[11, 12, 13])),
        (Gate.SAMPLING, sampled(replace(ASKED, temperature=1.0))),
        (Gate.SAMPLING, sampled(replace(ASKED, top_p=1.0))),
        (Gate.SAMPLING, sampled(replace(ASKED, top_k=0))),
        (Gate.SAMPLING, sampled(replace(ASKED, min_p=0.0))),
        (Gate.TIMING, replace(GOOD, timing=Timing(queue=98.9, wall=100.0))),
        (Gate.TIMING, replace(GOOD, timing=Timing(queue=math.nan, wall=100.0))),
        (Gate.TIMING, replace(GOOD, timing=Timing(queue=-1.0, tool_run=3.0, wall=2.0))),
        (Gate.REWARD, replace(GOOD, reward=math.inf)),
        (Gate.ZERO_LOGPROBS, make_generation([0.0] * MIN_TOKENS_TO_SUSPECT)),
        (Gate.ZERO_LOGPROBS, make_generation([0.0] * MIN_TOKENS_TO_SUSPECT, steps=8)),
    ],
)
def test_a_bad_record_is_refused_by_its_gate_alone(gate: Gate, bad: Trajectory) -> None:
    """One fault, one violation."""
    assert gates_of(bad) == [gate]


def test_weights_may_be_as_far_apart_as_is_configured() -> None:
    """Only those that sampled count: an observation carries the version of its step."""
    spread = replace(GOOD, weight_versions=[1, 1, 1, 3, 3, 4, 4, 4, 9, 9])
    assert gates_of(spread) == []
    assert check(spread, 3) == []
    (violation,) = check(spread, 2)
    assert violation.gate is Gate.VERSION_SPAN
    assert violation.message == "weights 1 to 4 sampled it; they may be 2 versions apart"


def test_an_empty_completed_trajectory_is_refused() -> None:
    """A completed trajectory that said nothing is a lost response, not an answer."""
    empty = replace(
        GOOD, response_ids=[], response_mask=[], response_logprobs=[], weight_versions=[], steps=[]
    )
    assert gates_of(empty) == [Gate.IDS]


def test_one_padded_step_is_found_among_honest_ones() -> None:
    """Logprobs that are missing for a whole step do not hide behind the other steps."""
    honest, padded = [-0.5] * MIN_TOKENS_TO_SUSPECT, [0.0] * MIN_TOKENS_TO_SUSPECT
    (violation,) = check(make_generation(honest + padded, steps=2))
    assert (violation.gate, violation.message) == (
        Gate.ZERO_LOGPROBS,
        "step 1: all 64 sampled tokens have logprob exactly 0.0",
    )


@pytest.mark.parametrize(
    "honest",
    [
        make_generation([-0.7, *[0.0] * 999]),
        make_generation([0.0] * (MIN_TOKENS_TO_SUSPECT - 1)),
        make_generation([0.0] * 500, constrained=True),
    ],
)
def test_certain_tokens_are_no_alarm(honest: Trajectory) -> None:
    """A greedy loop after one decision, a short certain answer and a forced schema are all legitimate."""
    assert check(honest) == []


def test_greedy_logprobs_are_not_suspected() -> None:
    """An engine that reports the logprobs of greedy sampling reports 0.0 throughout."""
    zeros = make_generation([0.0] * 500)
    assert gates_of(zeros) == [Gate.ZERO_LOGPROBS]
    assert gates_of(replace(zeros, sampling=SamplingParams(temperature=0.0))) == []


@pytest.mark.parametrize("echo", [None, ASKED, replace(ASKED, temperature=0.699999988079071, seed=None)])
def test_an_echo_in_single_precision_is_the_same(echo: SamplingParams | None) -> None:
    """Engines keep parameters in 32 bits; seeds are derived; some tell nothing."""
    assert gates_of(sampled(echo)) == []


def test_every_violation_is_reported() -> None:
    """Quarantine shows all that is wrong, not the first of it."""
    bad = replace(GOOD, batch_id="", reward=math.nan, stop_reason=StopReason.CANCELLED)
    assert gates_of(bad) == [Gate.IDS, Gate.STOP_REASON, Gate.REWARD]
