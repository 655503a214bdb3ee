"""Batches take turns by weight; within a batch the rank decides."""

from __future__ import annotations

from collections import Counter

import pytest
from control_rig import Rig, make_spec
from hypothesis import given
from hypothesis import strategies as st

from heddle.control.events import BatchSubmitted
from heddle.control.shares import MOST_URGENT, Share, SharedQueue
from heddle.types import BatchId, TrajectoryId, TrajectoryPhase, WorkerId


def fill(queue: SharedQueue, batch: str, size: int) -> None:
    for index in range(size):
        queue.push(TrajectoryId(f"{batch}{index}"), BatchId(batch), 0.0, index)


def serve(queue: SharedQueue, shares: dict[str, Share], count: int, now: float = 0.0) -> Counter[str]:
    """Grants by batch."""
    served: Counter[str] = Counter()
    for _ in range(count):
        batch = queue.peek().batch_id
        assert queue.pop(shares[batch], now).batch_id == batch
        served[batch] += 1
    return served


def test_grants_follow_the_weights() -> None:
    """Three to one, in every stretch of four."""
    queue = SharedQueue()
    fill(queue, "a", 60)
    fill(queue, "b", 60)
    shares = {"a": Share(3.0), "b": Share(1.0)}
    for _ in range(10):
        assert serve(queue, shares, 4) == {"a": 3, "b": 1}


def test_a_batch_saves_up_nothing_while_it_does_not_wait() -> None:
    """One that comes late, or back, does not stop the others until it has caught up."""
    queue = SharedQueue()
    shares = {"a": Share(), "b": Share()}
    fill(queue, "a", 50)
    serve(queue, shares, 20)
    fill(queue, "b", 50)
    assert serve(queue, shares, 10) == {"a": 5, "b": 5}


def test_a_batch_that_comes_and_goes_gets_no_more_than_its_share() -> None:
    """To leave the queue empty and come back at once is no way to overtake."""
    queue = SharedQueue()
    shares = {"a": Share(), "b": Share()}
    fill(queue, "a", 40)
    served: Counter[str] = Counter()
    for index in range(20):
        if not any(name.startswith("b") for name in queue.ids()):
            queue.push(TrajectoryId(f"b{index}"), BatchId("b"), 0.0, index)
        served += serve(queue, shares, 1)
    assert abs(served["a"] - served["b"]) <= 1


@pytest.mark.parametrize(
    ("now", "urgency"), [(0.0, 1.0), (50.0, 2.0), (90.0, 10.0), (99.9, MOST_URGENT), (500.0, MOST_URGENT)]
)
def test_a_deadline_makes_a_batch_heavier(now: float, urgency: float) -> None:
    """By how much of its time is gone, up to a bound, also when it has passed."""
    assert Share(2.0, deadline_s=100.0).stride(now) == pytest.approx(1.0 / (2.0 * urgency))


def test_a_deadline_that_had_passed_at_submission_is_urgent() -> None:
    """As after a recovery."""
    assert Share(1.0, deadline_s=-5.0).stride(0.0) == 1.0 / MOST_URGENT


@given(
    entries=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), min_size=1, max_size=60
    )
)
def test_the_order_shown_is_the_order_of_service(entries: list[tuple[str, int, bool]]) -> None:
    """With equal weights, whatever was removed; and everybody is served exactly once."""
    queue = SharedQueue()
    names = []
    for arrival, (batch, rank, removed) in enumerate(entries):
        name = TrajectoryId(f"{batch}{arrival}")
        queue.push(name, BatchId(batch), float(rank), arrival)
        if removed:
            queue.remove(name, BatchId(batch))
        else:
            names.append(name)
    shown = queue.first(1000)
    served = [queue.pop(Share(), 0.0).trajectory_id for _ in range(len(queue))]
    assert list(shown) == served
    assert sorted(served) == sorted(names)
    with pytest.raises(IndexError):
        queue.peek()


def test_two_batches_share_the_slots_of_a_worker_by_their_weights() -> None:
    """Through the control plane, step by step; and each says with whom it takes turns."""
    rig = Rig(slots=1)
    rig.pool(1)
    for name, weight in (("a", 1.0), ("b", 2.0)):
        specs = tuple(make_spec(f"{name}{index}") for index in range(20))
        rig.send(BatchSubmitted(BatchId(name), specs, weight))
    assert rig.plane.explain(TrajectoryId("b1"), rig.now).reason == (
        "1 of 1 slots of w0 are taken; 1 ahead of it, the last of them b0, "
        "and 19 of other batches take turns with them"
    )
    served: Counter[str] = Counter()
    for _ in range(18):
        [running] = rig.plane.state.workers[WorkerId("w0")].generating
        served[running[0]] += 1
        rig.step(running)
    assert served == {"a": 6, "b": 12}


def test_a_batch_that_is_over_is_forgotten_by_every_queue() -> None:
    """Another may take its name, and begins like any other."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.send(BatchSubmitted(BatchId("a"), (make_spec("a0"),), 0.01))
    rig.send(BatchSubmitted(BatchId("b"), (make_spec("b0"), make_spec("b1"))))
    rig.finish("a0")
    rig.finish("b0")
    rig.send(BatchSubmitted(BatchId("a"), (make_spec("a0"), make_spec("a1"))))
    rig.finish("b1")
    assert rig.trajectory("a0").phase is TrajectoryPhase.GENERATING
