"""Whether to move a live trajectory while its tool runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import MigrationPlanner
from heddle.errors import ConfigError
from heddle.migration.gated import GatedMigration
from heddle.migration.none import NoMigration
from heddle.migration.options import MigrationOptions
from heddle.migration.rank import RankMigration
from heddle.migration.replan import ReplanMigration, load_kernels

__all__ = ["MIGRATION_PLANNERS", "MigrationOptions", "kernel_loader", "make_migration_planner"]

MIGRATION_PLANNERS: Mapping[str, Callable[[MigrationOptions], MigrationPlanner]] = {
    "none": lambda options: NoMigration(),
    "rank": RankMigration,
    "gated": GatedMigration,
    "replan": ReplanMigration,
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
    return load_kernels if name == ReplanMigration.name else None
