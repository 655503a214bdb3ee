"""Named choices of the control plane's parts: other systems' ways, the paper's, and Heddle's own.

A preset says only what makes it what it is; everything else stays as the settings under it have it. So one
base (slots, profile, seed, predictor) can be put under several presets, and what differs then is theirs. In
TOML a preset is a table, which may begin with the choices of another:

    [presets.mine]
    base = "heddle"
    scheduler = "fcfs"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from heddle.control.build import PlaneSettings
from heddle.errors import ConfigError
from heddle.validation import faults


@with_config(ConfigDict(extra="forbid", strict=True))
class Choices(TypedDict, total=False):
    """Settings of :class:`~heddle.control.build.PlaneSettings` that presets may choose, by the same names."""

    scheduler: str
    placer: str
    allocator: str
    migration: str
    predictor: str
    pool: str
    preemption: bool
    preempt_margin_tokens: float
    max_preemptions_per_step: int
    ageing_per_s: float
    kv_guard: bool
    reshaper: str


@dataclass(frozen=True, slots=True)
class Preset:
    """Choices with a name."""

    name: str
    about: str
    """One sentence; empty where nobody wrote one."""
    choices: Choices

    def over(self, settings: PlaneSettings) -> PlaneSettings:
        """The settings with its choices in their place."""
        return replace(settings, **self.choices)

    def overrides(self) -> Mapping[str, object]:
        """Its choices by the keys of the configuration file."""
        sections = {"pool": "engine"}
        return {f"{sections.get(name, 'decisions')}.{name}": value for name, value in self.choices.items()}

    def toml(self, base: str | None = None) -> str:
        """A table that :func:`parse_presets` reads back; with ``base``, what it changes of that preset."""
        comment = [f"# {self.about}"] if self.about else []
        named = {} if base is None else {"base": base}
        lines = [f"{name} = {_toml_value(value)}" for name, value in {**named, **self.choices}.items()]
        return "\n".join([*comment, f"[presets.{self.name}]", *lines, ""])


def parse_presets(text: str, *, source: str) -> Mapping[str, Preset]:
    """The presets of a TOML text, beside which other tables may stand; ``source`` names it in messages.

    A ``base`` is one of :data:`PRESETS` or stands earlier in the text. Raises ``ConfigError`` that names the
    preset and the key.
    """
    try:
        tables = tomllib.loads(text).get("presets", {})
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{source} is not TOML: {exc}") from exc
    if not isinstance(tables, dict):
        raise ConfigError(f"{source}: presets must be a table")
    parsed: dict[str, Preset] = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: presets.{name} must be a table")
        parsed[name] = _parse_preset(name, table, {**PRESETS, **parsed}, source)
    return parsed


def find_preset(name: str, more: Mapping[str, Preset] = MappingProxyType({})) -> Preset:
    """One of ``more`` or of :data:`PRESETS`. Raises ``ConfigError`` that lists the names there are."""
    known = {**PRESETS, **more}
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; choose one of {', '.join(known)}")
    return known[name]


def _parse_preset(name: str, table: dict[str, object], known: Mapping[str, Preset], source: str) -> Preset:
    base = table.pop("base", None)
    if base is not None and base not in known:
        raise ConfigError(f"{source}: presets.{name}.base: {base!r} is none of {', '.join(known)}")
    try:
        own = _adapter().validate_python(table)
    except ValidationError as exc:
        wrong = "; ".join(map(str, faults(exc, [*Choices.__annotations__, "base"])))
        raise ConfigError(f"{source}: presets.{name}: {wrong}") from exc
    inherited = known[base].choices if isinstance(base, str) else Choices()
    return Preset(name, "", {**inherited, **own})


def _toml_value(value: object) -> str:
    """Choices are words, numbers and truth values; words need no escapes."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@cache
def _adapter() -> TypeAdapter[Choices]:
    """Made when a configuration names presets."""
    return TypeAdapter(Choices)


_ENGINE_ORDER = Choices(scheduler="fcfs", preemption=False, migration="none", kv_guard=False)
"""What systems do that see steps and not trajectories: engines serve in the order of arrival."""

_BY_LENGTH = Choices(scheduler="earned", preemption=True)

_PRESETS = (
    Preset(
        "verl",
        "Bound to a worker by id, steps in the order of arrival.",
        {**_ENGINE_ORDER, "placer": "pinned", "allocator": "fixed"},
    ),
    Preset(
        "verl-rebalance",
        "The same, but to the least loaded worker while loads are badly out of balance; the paper's verl*.",
        {**_ENGINE_ORDER, "placer": "pinned_rebalance", "allocator": "fixed"},
    ),
    Preset(
        "slime",
        "Every step to the least loaded worker, in the order of arrival.",
        {**_ENGINE_ORDER, "placer": "least_load", "allocator": "fixed"},
    ),
    Preset(
        "sticky",
        "To the worker with fewest trajectories, for good, in the order of arrival: the yardstick.",
        {**_ENGINE_ORDER, "placer": "sticky_least_loaded", "allocator": "fixed"},
    ),
    Preset(
        "autellix",
        "Placed as by sticky, least attained service first.",
        {
            **_ENGINE_ORDER,
            "scheduler": "autellix",
            "preemption": True,
            "placer": "sticky_least_loaded",
            "allocator": "fixed",
        },
    ),
    Preset(
        "heddle-paper",
        "The paper to the letter: longest first, presorted dynamic programming, annealing, moves by rank.",
        {
            "scheduler": "progressive",
            "preemption": True,
            "placer": "presorted_dp",
            "allocator": "annealing",
            "migration": "rank",
            "kv_guard": False,
        },
    ),
    # No moves: on the shipped traces plans by length were as fast without them as with `gated`, or faster.
    Preset(
        "heddle",
        "By length as far as predictions are trusted, by the time that draining takes, memory guarded.",
        {**_BY_LENGTH, "placer": "drain", "allocator": "drain", "migration": "none", "kv_guard": True},
    ),
    Preset(
        "fix1",
        "Heddle on workers of degree 1.",
        {
            **_BY_LENGTH,
            "placer": "drain",
            "allocator": "fixed",
            "pool": "1*",
            "migration": "none",
            "kv_guard": True,
        },
    ),
    Preset(
        "fix8",
        "Heddle on workers of degree 8.",
        {
            **_BY_LENGTH,
            "placer": "drain",
            "allocator": "fixed",
            "pool": "8*",
            "migration": "none",
            "kv_guard": True,
        },
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""By name."""
