"""Reading numbers out of what a model says, without evaluating anything."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(
    r"""
    (?<![\w.])
    (?P<sign>-?)\s?\$?
    (?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?
    (?P<fraction>\.\d+)?
    (?P<exponent>[eE][+-]?\d{1,3})?
    (?:\s?/\s?(?P<divisor>\d+))?
    """,
    re.VERBOSE,
)


def last_number(text: str) -> float | None:
    """The last number in ``text``, or ``None``; reads ``1,200``, ``$3.50``, ``-4``, ``1e3`` and ``3/4``."""
    value = None
    for match in _NUMBER.finditer(text):
        value = _value_of(match) if match["whole"] or match["fraction"] else value
    return value


def same_number(got: float, expected: float, tolerance: float = 1e-6) -> bool:
    """Equal within ``tolerance``, relative to the expected value."""
    return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance if expected == 0 else 0.0)


def finite(value: float) -> float | None:
    """``value`` as a float, or ``None`` where no finite float can hold it."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _value_of(match: re.Match[str]) -> float | None:
    whole = (match["whole"] or "0").replace(",", "")
    number = float(whole + (match["fraction"] or "") + (match["exponent"] or ""))
    if match["divisor"] is not None:
        divisor = float(match["divisor"])
        if divisor == 0:
            return None
        number /= divisor
    return finite(-number if match["sign"] else number)
