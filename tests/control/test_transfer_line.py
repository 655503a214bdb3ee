"""The line of transfers against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heddle.control.transfers import Move, TransferLine
from heddle.types import TrajectoryId, WorkerId

WORKERS = [WorkerId(f"w{i}") for i in range(5)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "start", "withdraw", "answer"]), st.integers(0, 11), st.integers(0, 3)
        ),
        max_size=60,
    )
)
def test_the_line_never_shares_a_worker_and_never_lets_one_idle(
    operations: list[tuple[str, int, int]],
) -> None:
    """Who runs, who is next, what is expected where."""
    line = TransferLine()
    moves: dict[str, Move] = {}
    for operation, which, urgency in operations:
        name = TrajectoryId(f"t{which}")
        if operation == "add" and name not in line:
            source, target = WORKERS[which % 5], WORKERS[(which + 1 + urgency) % 5]
            moves[name] = Move(name, source, target, 10 + which, float(urgency))
            line.add(moves[name])
        elif operation == "start":
            waiting = sorted(
                (m for m in moves.values() if not m.under_way), key=lambda m: (-m.urgency, m.number)
            )
            taken = {worker for m in moves.values() if m.under_way for worker in m.endpoints}
            expected = []
            for move in waiting:
                if taken.isdisjoint(move.endpoints):
                    taken.update(move.endpoints)
                    expected.append(move)
            assert list(line.start(0.0)) == expected
        elif operation == "withdraw":
            known = moves.get(name)
            stays = known is not None and not known.withdrawn
            assert line.withdraw(name) is (known if stays else None)
            if known is not None and not known.under_way:
                del moves[name]
        elif operation == "answer" and name in moves:
            known = moves[name]
            assert line.answered(name, *known.endpoints) is (known if known.under_way else None)
            if known.under_way:
                del moves[name]
        assert {m.trajectory_id for m in line.moves()} == set(moves)
        assert line.waiting + line.under_way == len(moves)
        for worker in WORKERS:
            coming = (m for m in moves.values() if m.target == worker and not m.withdrawn)
            assert line.expected_tokens(worker) == sum(m.context_tokens for m in coming)
