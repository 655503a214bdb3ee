"""Presets: named choices, printable, and a user's own in TOML."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from heddle.config import parse_config
from heddle.control.build import PlaneSettings, build_plane
from heddle.errors import ConfigError
from heddle.planning.shipped import shipped_profiles
from heddle.presets import PRESETS, find_preset, parse_presets

BASE = PlaneSettings(
    slots=7, seed=3, predictor="oracle", profile=shipped_profiles().select("h100_sxm", "Qwen3-8B")
)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_control_plane(name: str) -> None:
    """Over any base with a profile; what a preset does not say stays as it was."""
    settings = PRESETS[name].over(BASE)

    build_plane(settings)

    choices = PRESETS[name].choices
    assert {**asdict(BASE), **choices} == asdict(settings)
    assert (settings.slots, settings.seed, settings.predictor) == (7, 3, "oracle")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_prints_as_toml_that_reads_back(name: str) -> None:
    """Its table is a complete definition of it."""
    preset = PRESETS[name]

    assert parse_presets(preset.toml(), source="text")[name].choices == preset.choices


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name: str) -> None:
    """Its overrides are keys that the configuration file has."""
    values: dict[str, dict[str, object]] = {"engine": {}, "decisions": {}}
    for key, value in PRESETS[name].overrides().items():
        section, setting = key.split(".")
        values[section][setting] = value

    config = parse_config({**values})

    assert config.decisions.scheduler == PRESETS[name].choices["scheduler"]


def test_a_user_defines_presets_on_top_of_others() -> None:
    """On a shipped one, and on one that stands earlier in the file, beside other tables."""
    text = """
        [engine]
        slots = 4
        [presets.mine]
        base = "heddle"
        scheduler = "fcfs"
        [presets.other]
        base = "mine"
        ageing_per_s = 2.0
    """
    mine = parse_presets(text, source="heddle.toml")

    assert mine["mine"].choices == {**PRESETS["heddle"].choices, "scheduler": "fcfs"}
    assert find_preset("other", mine).over(BASE).ageing_per_s == 2.0
    assert find_preset("verl", mine) is PRESETS["verl"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[presets.a]\nbase = 'nobody'", "presets.a.base: 'nobody' is none of verl"),
        ("[presets.a]\nslots = 3", "f.toml: presets.a: slots: no such field"),
        ("[presets.a]\nkv_guard = 'yes'", "presets.a: kv_guard"),
        ("[presets]\na = 1", "presets.a must be a table"),
        ("presets = 1", "presets must be a table"),
        ("[presets", "f.toml is not TOML"),
    ],
)
def test_a_bad_definition_is_refused(text: str, complaint: str) -> None:
    """The message names file, preset and key."""
    with pytest.raises(ConfigError, match=complaint):
        parse_presets(text, source="f.toml")


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    """A misspelt preset is a ConfigError."""
    with pytest.raises(ConfigError, match=r"unknown preset 'hedle'; choose one of verl, .*heddle"):
        find_preset("hedle")
