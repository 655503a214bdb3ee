"""The summary of a batch and its table."""

from __future__ import annotations

import orjson
from cli_builders import make_call, make_step, make_trajectory
from rich.console import Console

from heddle.cli.results import BatchSummary, RewardSummary, Tally, results_table
from heddle.types import StopReason


def make_summary() -> BatchSummary:
    """Three trajectories: one with a tool, one that only tried, one that failed unjudged."""
    tally = Tally()
    tally.add(make_trajectory(steps=[make_step(0, calls=[make_call()]), make_step(1)], reward=1.0))
    tally.add(make_trajectory(steps=[make_step(0, calls=[make_call(outcome="invalid")])], reward=0.0))
    tally.add(make_trajectory(environment="code", stop_reason=StopReason.ENGINE_FAILED, reward=None))
    return tally.summary("b", makespan_s=2.0, engine_restarts=1)


def test_counts_add_up() -> None:
    """Every number is over all records; an invalid call is no tool call."""
    summary = make_summary()
    assert (summary.trajectories, summary.by_status) == (3, {"completed": 2, "failed": 1})
    assert summary.by_stop_reason == {"completed": 2, "engine_failed": 1}
    assert (summary.steps_median, summary.steps_max) == (1, 2)
    assert (summary.sampled_tokens, summary.prompt_tokens, summary.cached_tokens) == (12, 40, 16)
    assert (summary.tool_calls, summary.tool_share) == (1, 1 / 3)
    assert (summary.makespan_s, summary.tokens_per_s, summary.engine_restarts) == (2.0, 6.0, 1)


def test_unjudged_trajectories_never_count_as_reward_zero() -> None:
    """The mean is over those that were judged."""
    assert make_summary().rewards == {
        "code": RewardSummary(mean=None, judged=0, trajectories=1),
        "math": RewardSummary(mean=0.5, judged=2, trajectories=2),
    }


def test_an_empty_batch_has_a_summary() -> None:
    """A run that was cancelled at once still ends with a table."""
    summary = Tally().summary("b", makespan_s=0.0, engine_restarts=0)
    assert (summary.trajectories, summary.tool_share, summary.tokens_per_s) == (0, 0.0, 0.0)


def test_the_table_says_everything() -> None:
    """Each figure is on its line."""
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(results_table(make_summary()))
    text = capture.get()
    for expected in (
        "3: 2 completed, 1 failed",
        "median 1, max 2",
        "12 sampled; 40 prompt, 16 of them cached",
        "1; 33% of the trajectories made at least one",
        "2.0 s, 6.0 sampled tokens/s",
        "mean 0.500 (n = 2)",
        "not judged (n = 1)",
    ):
        assert expected in text


def test_the_summary_is_json() -> None:
    """``--json`` prints the same figures."""
    assert orjson.loads(orjson.dumps(make_summary()))["rewards"]["math"]["mean"] == 0.5
