"""The configuration of a command: the file, then the options of the command line over it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from heddle.config import HeddleConfig, load_config
from heddle.errors import ConfigError, InvalidRequest
from heddle.presets import Preset, find_preset, parse_presets


def resolve_config(
    path: Path | None,
    options: Mapping[str, object | None],
    assignments: Sequence[str],
    preset: str | None = None,
) -> HeddleConfig:
    """Read ``path`` and override single keys; an option that is None was not given.

    A preset, shipped or of the file, wins over the file's other keys, options over both, and ``assignments``
    (``section.key=value`` from ``--set``) over everything. Raises ``InvalidRequest`` on a malformed
    assignment and ``ConfigError`` on a bad key, value or preset.
    """
    overrides: dict[str, object] = {}
    if preset is not None:
        overrides |= _named_preset(preset, path).overrides()
    overrides |= {key: value for key, value in options.items() if value is not None}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not all(key.split(".")):
            raise InvalidRequest(f"{assignment!r} is not of the form section.key=value", path="--set")
        overrides[key] = _toml_value(value)
    return load_config(path, overrides)


def _named_preset(name: str, path: Path | None) -> Preset:
    if path is None:
        return find_preset(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read configuration {path}: {exc}") from exc
    return find_preset(name, parse_presets(text, source=str(path)))


def engine_options(
    engine: str | None, model: str | None, gpus: str | None, workers: Sequence[str]
) -> dict[str, object | None]:
    """The options about the engine, by the keys that they set; servers that run already are SGLang's.

    Raises ``InvalidRequest`` where an option is SGLang's and another engine is asked for.
    """
    for option, given in (("--worker", workers), ("--gpus", gpus)):
        if given and engine not in (None, "sglang"):
            raise InvalidRequest(f"is for SGLang, not for --engine {engine}", path=option)
    return {
        "engine.kind": engine or ("sglang" if workers else None),
        "engine.model": model,
        "engine.sglang.gpus": gpus,
        "engine.sglang.workers": list(workers) or None,
    }


def _toml_value(text: str) -> object:
    """A TOML value where ``text`` is one (``4``, ``true``, ``"a"``), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
