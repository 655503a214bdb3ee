"""Whether to move a live trajectory while its tool runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heddle.control.ports import MigrationPlanner
from heddle.errors import ConfigError
from heddle.migration.none import NoMigration

MIGRATION_PLANNERS: Mapping[str, Callable[[], MigrationPlanner]] = {"none": NoMigration}


def make_migration_planner(name: str) -> MigrationPlanner:
    """The planner of this name. Raises ``ConfigError`` that lists the names there are."""
    make = MIGRATION_PLANNERS.get(name)
    if make is None:
        raise ConfigError(
            f"unknown migration planner {name!r}; choose one of {', '.join(MIGRATION_PLANNERS)}"
        )
    return make()
