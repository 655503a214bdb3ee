"""Endings are learned in the order of beginnings, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heddle.predict.cohorts import PATIENCE, SMALLEST, Cohorts
from heddle.types import TrajectoryId


def names(count: int) -> list[TrajectoryId]:
    return [TrajectoryId(f"t{index}") for index in range(count)]


def test_the_short_ones_wait_for_the_long_one() -> None:
    """A batch that began together is learned together, in the order in which it began."""
    cohorts: Cohorts[str] = Cohorts()
    batch = names(SMALLEST)
    for name in batch:
        cohorts.begin(name)
    for name in batch[:0:-1]:
        assert cohorts.end(name, name) == []
    assert cohorts.end(batch[0], batch[0]) == batch


def test_one_after_another_waits_for_nobody() -> None:
    """Where nothing runs side by side, an ending is learned at once."""
    cohorts: Cohorts[str] = Cohorts()
    for name in names(20):
        cohorts.begin(name)
        assert cohorts.end(name, name) == [name]


def test_a_straggler_is_overtaken_and_learned_when_it_ends() -> None:
    """It holds up its own cohort and the next ones only until they are complete."""
    cohorts: Cohorts[str] = Cohorts()
    straggler, *others = names(1 + SMALLEST * (PATIENCE + 1))
    cohorts.begin(straggler)
    learned: list[str] = []
    for name in others:
        cohorts.begin(name)
        learned += cohorts.end(name, name)
    assert learned == others[: len(learned)]
    assert len(learned) >= SMALLEST * PATIENCE
    assert cohorts.open_trajectories == 1
    assert cohorts.end(straggler, straggler) == [straggler]
    assert cohorts.open_trajectories == 0


@given(st.data())
def test_every_ending_is_learned_once(data: st.DataObject) -> None:
    """Whatever begins, ends and is forgotten in whatever order."""
    cohorts: Cohorts[str] = Cohorts()
    waiting = names(60)
    running: list[TrajectoryId] = []
    learned: list[str] = []
    ended: list[str] = []
    while waiting or running:
        if waiting and (not running or data.draw(st.booleans())):
            running.append(waiting.pop())
            cohorts.begin(running[-1])
            continue
        name = running.pop(data.draw(st.integers(0, len(running) - 1)))
        if data.draw(st.integers(0, 4)):
            ended.append(name)
            learned += cohorts.end(name, name)
        else:
            learned += cohorts.forget(name)
    assert sorted(learned) == sorted(ended)
