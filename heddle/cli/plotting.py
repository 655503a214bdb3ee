"""Whether this installation can draw."""

from __future__ import annotations

import importlib.util


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None
