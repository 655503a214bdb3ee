"""Migration planners propose moves."""

from __future__ import annotations

from heddle.migration import make_migration_planner


def test_none_proposes_nothing() -> None:
    """A trajectory stays where it was placed."""
    planner = make_migration_planner("none")

    assert list(planner.propose((), (), 0.0)) == []
    assert planner.name == "none"
