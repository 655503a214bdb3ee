"""Which environments there are: the built-in ones, installed ones, and those named in the configuration.

Everything is loaded when the registry is built, so that a broken environment stops the start and not a
batch. Later sources may not take a name that is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, runtime_checkable

from heddle.agent.ports import Environment
from heddle.environments.base import ToolEnvironment
from heddle.environments.code import CodeEnvironment
from heddle.environments.guess import GuessEnvironment
from heddle.environments.math import MathEnvironment
from heddle.environments.replay import ReplayEnvironment
from heddle.environments.search import SearchEnvironment
from heddle.errors import ConfigError, InvalidRequest
from heddle.tools.ports import ToolBackend

ENTRY_POINT_GROUP = "heddle.environments"


@runtime_checkable
class _CheckedEnvironment(Environment, Protocol):
    """``Environment``, for a check of what foreign code made."""


class EnvironmentRegistry:
    """Environments by name; immutable."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self._environments = dict(environments)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._environments))

    def get(self, name: str, *, path: str = "environment") -> Environment:
        """The environment of this name; one instance for everybody.

        Raises ``InvalidRequest`` with ``path`` and the names that there are.
        """
        environment = self._environments.get(name)
        if environment is None:
            known = ", ".join(self.names())
            message = f"unknown environment {name!r}; there are: {known}"
            raise InvalidRequest(message, path=path, code="unknown_environment")
        return environment

    def backends(self) -> list[ToolBackend]:
        """The backends that the environments bring along, for the Tool Manager."""
        environments = self._environments.values()
        return [b for env in environments if isinstance(env, ToolEnvironment) for b in env.backends()]


def build_registry(
    extra: Mapping[str, str], installed: Iterable[EntryPoint] | None = None
) -> EnvironmentRegistry:
    """Load all environments. ``extra`` maps names to ``module:Class``; the class takes no arguments.

    ``installed`` defaults to the entry points of the group ``heddle.environments``. Raises
    ``ConfigError`` with the name and the cause where one cannot be loaded.
    """
    environments: dict[str, Environment] = {}
    for make in (MathEnvironment, CodeEnvironment, SearchEnvironment, GuessEnvironment, ReplayEnvironment):
        built_in = make()
        environments[built_in.name] = built_in
    found = entry_points(group=ENTRY_POINT_GROUP) if installed is None else installed
    places = [(point.name, point.value, f"entry point {point.name}") for point in found]
    places += [(name, place, f"environments.{name}") for name, place in extra.items()]
    for name, place, source in places:
        if name in environments:
            raise ConfigError(f"{source}: the name {name!r} is taken; choose another")
        environments[name] = load_environment(place, source)
    return EnvironmentRegistry(environments)


def load_environment(place: str, source: str) -> Environment:
    """Import ``module:Class`` and make one. Raises ``ConfigError`` that begins with ``source``."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise ConfigError(f"{source}: {place!r} is not of the form module:Class")
    try:
        made = EntryPoint(name=name, value=place, group=ENTRY_POINT_GROUP).load()()
    except Exception as exc:  # foreign code runs here: whatever it raises is a wrong configuration
        raise ConfigError(f"{source}: cannot load {place!r}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, _CheckedEnvironment):
        raise ConfigError(f"{source}: {place!r} is no Environment: it needs name, reset, step and reward")
    return made
