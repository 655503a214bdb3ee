"""The configuration of a command: the file, then the options of the command line over it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from heddle.config import HeddleConfig, load_config
from heddle.errors import InvalidRequest


def resolve_config(
    path: Path | None, options: Mapping[str, object | None], assignments: Sequence[str]
) -> HeddleConfig:
    """Read ``path`` and override single keys; an option that is None was not given.

    ``assignments`` are ``section.key=value`` from ``--set`` and win over everything. Raises
    ``InvalidRequest`` on a malformed assignment and ``ConfigError`` on a bad key or value.
    """
    overrides: dict[str, object] = {key: value for key, value in options.items() if value is not None}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not all(key.split(".")):
            raise InvalidRequest(f"{assignment!r} is not of the form section.key=value", path="--set")
        overrides[key] = _toml_value(value)
    return load_config(path, overrides)


def _toml_value(text: str) -> object:
    """A TOML value where ``text`` is one (``4``, ``true``, ``"a"``), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
