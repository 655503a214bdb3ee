"""Built-in, installed and configured environments by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from heddle.environments.math import MathEnvironment
from heddle.environments.registry import ENTRY_POINT_GROUP, build_registry
from heddle.errors import ConfigError, InvalidRequest

MATH = "heddle.environments.math:MathEnvironment"


def entry_point(name: str, value: str) -> EntryPoint:
    """An installed environment."""
    return EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP)


def test_the_built_in_environments_are_there() -> None:
    """Under their own names, one instance for everybody."""
    registry = build_registry({}, installed=())

    assert registry.names() == ("code", "guess", "math", "replay", "search")
    assert registry.get("math") is registry.get("math")
    assert all(registry.get(name).name == name for name in registry.names())


def test_the_backends_of_all_environments_have_names_of_their_own() -> None:
    """They can be registered with one Tool Manager."""
    names = [backend.name for backend in build_registry({}, installed=()).backends()]

    assert sorted(names) == ["guess.compare", "replay.sleep", "search.read", "search.search"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The error names the field of the request."""
    with pytest.raises(
        InvalidRequest, match="'chess'; there are: code, guess, math, replay, search"
    ) as caught:
        build_registry({}, installed=()).get("chess", path="prompts[2].environment")

    assert caught.value.path == "prompts[2].environment"
    assert caught.value.code == "unknown_environment"


def test_configured_and_installed_environments_join() -> None:
    """Both by ``module:Class``, under the name that their source gives."""
    registry = build_registry({"mine": MATH}, installed=[entry_point("theirs", MATH)])

    assert {"mine", "theirs"} <= set(registry.names())
    assert isinstance(registry.get("mine"), MathEnvironment)
    assert registry.get("mine") is not registry.get("theirs")


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("nothing", "environments.mine: 'nothing' is not of the form module:Class"),
        (":Class", "is not of the form module:Class"),
        ("module:", "is not of the form module:Class"),
        ("no_such_module_here:X", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("heddle.environments.math:Absent", "AttributeError: .*Absent"),
        ("heddle.environments.base:ToolEnvironment", "TypeError: .*abstract"),
        ("collections:Counter", "is no Environment: it needs name, reset, step and reward"),
        ("a b:c d", "cannot load"),
    ],
)
def test_what_cannot_be_loaded_is_a_config_error_with_its_cause(place: str, complaint: str) -> None:
    """The start fails, and says which line of the configuration is wrong."""
    with pytest.raises(ConfigError, match=complaint):
        build_registry({"mine": place}, installed=())


def test_a_module_that_breaks_on_import_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever foreign code raises is named, with its cause kept."""
    (tmp_path / "broken_environment_module.py").write_text("raise RuntimeError('out of paper')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"environments\.mine: .*RuntimeError: out of paper") as caught:
        build_registry({"mine": "broken_environment_module:X"}, installed=())

    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_taken_name_is_refused() -> None:
    """Nobody replaces a built-in environment by accident."""
    with pytest.raises(ConfigError, match="the name 'math' is taken"):
        build_registry({"math": MATH}, installed=())
    with pytest.raises(ConfigError, match=r"environments\.mine: the name 'mine' is taken"):
        build_registry({"mine": MATH}, installed=[entry_point("mine", MATH)])
