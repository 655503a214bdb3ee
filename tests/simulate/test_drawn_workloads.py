"""Tool times from named distributions, and batches drawn from a trace."""

from __future__ import annotations

import statistics

import pytest

from heddle.errors import InvalidRequest
from heddle.simulate.sampling import (
    Draw,
    SampleSource,
    bootstrap,
    mean_running_context,
    with_longer_outputs,
    with_tools_cut,
    within_context,
)
from heddle.simulate.tool_times import (
    parse_tool_times,
    require_tool_times,
    with_tool_times,
    without_tool_times,
)
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, TrajectoryId


def trajectory(name: str, *steps: WorkStep, group: str = "g") -> WorkTrajectory:
    """One that arrives at once."""
    return WorkTrajectory(TrajectoryId(name), GroupId(group), steps)


def unknown(count: int = 1) -> Workload:
    """``count`` trajectories with an unknown tool time each, and one that is known."""
    known = trajectory("known", WorkStep(5, 5, ("grep",), 7.0), WorkStep(1, 1))
    others = [trajectory(f"t{i}", WorkStep(5, 5, ("sh",), None), WorkStep(1, 1)) for i in range(count)]
    return Workload("w", (known, *others))


def seconds(workload: Workload) -> list[float | None]:
    """Of the first tool of every trajectory."""
    return [t.steps[0].tool_seconds for t in workload.trajectories]


def test_an_unknown_tool_time_is_an_error_that_names_the_option() -> None:
    """And the tools, and how to write a distribution."""
    with pytest.raises(InvalidRequest, match=r"lacks 1 tool times \(sh\).*lognormal") as caught:
        require_tool_times(unknown())
    assert "--tool-times" == caught.value.path
    require_tool_times(with_tool_times(unknown(), parse_tool_times("constant:1"), 0))


def test_only_unknown_times_are_drawn_and_the_note_says_so() -> None:
    """Recorded ones stay."""
    drawn = with_tool_times(unknown(2), parse_tool_times("constant:2.5"), 0)
    assert [7.0, 2.5, 2.5] == seconds(drawn)
    assert ("2 tool times were not recorded and are drawn from constant:value=2.5",) == drawn.notes
    assert not drawn.has_unknown_tool_times
    assert drawn == with_tool_times(drawn, parse_tool_times("constant:9"), 0)


@pytest.mark.parametrize(
    ("text", "median"), [("lognormal:median=2.0,sigma=0.5", 2.0), ("exponential:mean=2.0", 1.386)]
)
def test_draws_follow_their_distribution_and_their_seed(text: str, median: float) -> None:
    """The same seed gives the same times, another seed others."""
    times = parse_tool_times(text)
    first, again, other = (with_tool_times(unknown(4000), times, seed) for seed in (3, 3, 4))
    assert first == again
    assert seconds(first) != seconds(other)
    drawn = [value for value in seconds(first)[1:] if value is not None]
    assert pytest.approx(median, rel=0.1) == statistics.median(drawn)


def test_recorded_times_can_be_set_aside() -> None:
    """So that all are drawn; steps without a tool stay without."""
    bare = without_tool_times(unknown())
    assert [None, None] == seconds(bare)
    assert 0.0 == bare.trajectories[0].steps[1].tool_seconds
    assert ("1 recorded tool times set aside",) == bare.notes
    assert bare == without_tool_times(bare)


def test_outputs_can_be_made_longer() -> None:
    """By a factor that the notes tell."""
    longer = with_longer_outputs(prompts(), 2.5)
    assert [(2, 5), (8,), (10,)] == [tuple(s.output_tokens for s in t.steps) for t in longer.trajectories]
    assert ("sampled tokens of every step times 2.5",) == longer.notes
    with pytest.raises(InvalidRequest, match="positive"):
        with_longer_outputs(prompts(), 0)


def test_recorded_times_are_drawn_of_the_same_tool_where_there_are_any() -> None:
    """Else of all."""
    workload = Workload(
        "w",
        (
            trajectory("a", WorkStep(1, 1, ("sh",), 3.0), WorkStep(1, 1, ("grep",), 5.0), WorkStep(1, 1)),
            trajectory("b", WorkStep(1, 1, ("sh",), None), WorkStep(1, 1, ("cat",), None), WorkStep(1, 1)),
        ),
    )
    drawn = with_tool_times(workload, parse_tool_times("recorded"), 0).trajectories[1].steps
    assert 3.0 == drawn[0].tool_seconds
    assert drawn[1].tool_seconds in (3.0, 5.0)
    with pytest.raises(InvalidRequest, match="no recorded tool time"):
        with_tool_times(Workload("w", unknown().trajectories[1:]), parse_tool_times("recorded"), 0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "normal:mean=1", "constant", "constant:a", "constant:-1", "constant:inf", "recorded:1"),
        *("exponential:median=1", "lognormal:median=1", "lognormal:median=1,sigma=1,mean=1"),
        "lognormal:median=1,median=2",
    ],
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    """With the option and an example."""
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_times(text)
    assert "--tool-times" == caught.value.path


def prompts() -> Workload:
    """Prompt ``g`` with two samples, ``h`` with one."""
    return Workload(
        "w",
        (
            trajectory("g0", WorkStep(10, 1), WorkStep(2, 2)),
            trajectory("g1", WorkStep(10, 3)),
            trajectory("h0", WorkStep(99, 4), group="h"),
        ),
    )


def test_groups_are_drawn_from_the_samples_of_their_prompt() -> None:
    """With replacement, the same for the same seed, and labelled."""
    drawn = bootstrap(prompts(), Draw(groups=20, samples=3), seed=1)
    assert drawn == bootstrap(prompts(), Draw(groups=20, samples=3), seed=1)
    assert drawn != bootstrap(prompts(), Draw(groups=20, samples=3), seed=2)
    assert 60 == len({t.trajectory_id for t in drawn.trajectories})
    groups: dict[str, set[tuple[WorkStep, ...]]] = {}
    for member in drawn.trajectories:
        groups.setdefault(member.group_id, set()).add(member.steps)
    recorded = {t.steps for t in prompts().trajectories}
    assert 20 == len(groups)
    assert all(steps <= recorded for steps in groups.values())
    assert all(len({member[0].prompt_tokens for member in steps}) == 1 for steps in groups.values())
    assert "20 prompts drawn with replacement from 2, 3 of its trajectories each; 1 prompts" in drawn.notes[0]


def test_groups_of_the_whole_trace_share_the_prompt_that_was_drawn() -> None:
    """What follows the prompt may be any trajectory's."""
    drawn = bootstrap(prompts(), Draw(groups=30, samples=4, source=SampleSource.TRACE), seed=0)
    by_group: dict[str, set[int]] = {}
    for member in drawn.trajectories:
        by_group.setdefault(member.group_id, set()).add(member.steps[0].prompt_tokens)
    assert all(len(first) == 1 for first in by_group.values())
    assert {10, 99} == {first for firsts in by_group.values() for first in firsts}
    assert {1, 3, 4} == {t.steps[0].output_tokens for t in drawn.trajectories}
    assert "of the whole trace behind each" in drawn.notes[0]


def test_cuts_are_told() -> None:
    """Long contexts left out, long tools cut."""
    kept = within_context(prompts(), 15)
    assert ["g0", "g1"] == [t.trajectory_id for t in kept.trajectories]
    assert ("1 of 3 trajectories left out: context above 15",) == kept.notes
    assert prompts() == within_context(prompts(), 103)
    with pytest.raises(InvalidRequest, match="no trajectory"):
        within_context(prompts(), 5)
    cut = with_tools_cut(unknown(), 2.0)
    assert [2.0, None] == seconds(cut)
    assert ("1 tool times cut to 2 s",) == cut.notes


def test_the_mean_context_counts_every_sampled_token() -> None:
    """Of 10, 11 and 12 tokens, then 15."""
    one = Workload("w", (trajectory("t", WorkStep(10, 3), WorkStep(2, 1)),))
    assert (10 + 11 + 12 + 15) / 4 == mean_running_context(one)
    assert 0.0 == mean_running_context(Workload("w", ()))
