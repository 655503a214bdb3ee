"""The waiting queue against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.control.queue import WaitingQueue
from heddle.types import TrajectoryId

OPERATIONS = st.lists(st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 99)), max_size=300)


@given(operations=OPERATIONS)
def test_the_queue_serves_in_order_whatever_is_removed(operations: list[tuple[str, int]]) -> None:
    """Highest priority first, ties by arrival, through any mixture of pushes, pops and removals."""
    queue = WaitingQueue()
    model: list[tuple[int, int, TrajectoryId]] = []
    for arrival, (operation, number) in enumerate(operations):
        name = TrajectoryId(f"t{number}")
        waiting = {entry[2] for entry in model}
        if operation == "push" and name not in waiting:
            queue.push(name, float(number % 5), arrival)
            model = sorted([*model, (-(number % 5), arrival, name)])
        elif operation == "pop" and model:
            priority, _, first = model.pop(0)
            assert queue.pop() == (first, float(-priority))
        elif operation == "remove" and name in waiting:
            queue.remove(name)
            model = [entry for entry in model if entry[2] != name]
        assert len(queue) == len(model)

    order = tuple(entry[2] for entry in model)
    assert queue.first(1000) == order
    assert set(queue.ids()) == set(order)
    for index, name in enumerate(order):
        assert name in queue
        assert queue.position(name) == (index, order[index - 1] if index else None)


def test_an_entry_that_left_and_came_back_is_served_once() -> None:
    """The dead entry of an earlier stay is not mistaken for the live one."""
    queue = WaitingQueue()
    name = TrajectoryId("a")
    queue.push(name, 1.0, 1)
    queue.remove(name)
    queue.push(name, 1.0, 1)

    assert queue.pop() == (name, 1.0)
    with pytest.raises(IndexError):
        queue.pop()


def test_removals_do_not_pile_up() -> None:
    """Dead entries are swept out, so that a queue never holds much more than what waits."""
    queue = WaitingQueue()
    for number in range(10_000):
        queue.push(TrajectoryId(f"t{number}"), 0.0, number)
        if number >= 10:
            queue.remove(TrajectoryId(f"t{number}"))

    assert repr(queue) == "<WaitingQueue t0, t1, t2, t3, t4, t5, t6, t7 ...>"
    assert len(queue) == 10
    assert queue.heap_length <= 100
