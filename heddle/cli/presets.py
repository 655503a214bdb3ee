"""``heddle presets``: the named choices of the control plane's parts, as TOML."""

from __future__ import annotations

from pathlib import Path

from heddle.cli.output import ExitCode, Output
from heddle.errors import InvalidRequest
from heddle.presets import PRESETS, find_preset, parse_presets


def show(name: str | None, config: Path | None, output: Output) -> int:
    """One preset, or all: the shipped ones and those of the file. Raises ``ConfigError``."""
    mine = {} if config is None else parse_presets(_read(config), source=str(config))
    shown = [find_preset(name, mine)] if name is not None else list({**PRESETS, **mine}.values())
    if output.json:
        output.document({preset.name: {"about": preset.about, **preset.choices} for preset in shown})
    else:
        output.text("\n".join(preset.toml() for preset in shown).rstrip())
    return ExitCode.OK


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"cannot be read: {exc}", path=str(path)) from exc
