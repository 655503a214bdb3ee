"""The profiles that come with the package: H100, H200 and A100 (SXM) for Qwen3-8B, -14B and -32B.

Modelled, not measured; ``data/README.md`` says by what. Names: ``h100_sxm, h200_sxm, a100_sxm``.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from heddle.planning.profile_csv import ProfileTable, parse_profiles

SHIPPED = "the shipped profile"
"""How messages call the table."""


@cache
def shipped_profiles() -> ProfileTable:
    """The table of the package; ``.select(gpu, model)`` gives a profile. Read once a process."""
    text = resources.files("heddle.planning").joinpath("data", "modelled.csv").read_text("utf-8")
    return parse_profiles(text, source=SHIPPED)
