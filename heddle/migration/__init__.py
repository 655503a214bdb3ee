"""Whether to move a live trajectory while its tool runs. Planners are imported where they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import MigrationPlanner
from heddle.errors import ConfigError
from heddle.migration.none import NoMigration
from heddle.migration.options import MigrationOptions

__all__ = ["MIGRATION_PLANNERS", "MigrationOptions", "kernel_loader", "make_migration_planner"]


def _rank(options: MigrationOptions) -> MigrationPlanner:
    from heddle.migration.rank import RankMigration

    return RankMigration(options)


def _gated(options: MigrationOptions) -> MigrationPlanner:
    from heddle.migration.gated import GatedMigration

    return GatedMigration(options)


def _replan(options: MigrationOptions) -> MigrationPlanner:
    from heddle.migration.replan import ReplanMigration

    return ReplanMigration(options)


MIGRATION_PLANNERS: Mapping[str, Callable[[MigrationOptions], MigrationPlanner]] = {
    "none": lambda options: NoMigration(),
    "rank": _rank,
    "gated": _gated,
    "replan": _replan,
}

_NO_OPTIONS = MigrationOptions()


def make_migration_planner(name: str, options: MigrationOptions = _NO_OPTIONS) -> MigrationPlanner:
    """The planner of this name. Raises ``ConfigError`` that lists the names there are."""
    make = MIGRATION_PLANNERS.get(name)
    if make is None:
        raise ConfigError(
            f"unknown migration planner {name!r}; choose one of {', '.join(MIGRATION_PLANNERS)}"
        )
    return make(options)


def kernel_loader(name: str) -> Callable[[], None] | None:
    """Compiles the machine code that this planner runs, or loads it; ``None`` where it runs none.

    Takes seconds at first: for a thread, before the first plan would wait for it.
    """
    if name != "replan":
        return None
    from heddle.migration.replan import load_kernels

    return load_kernels
