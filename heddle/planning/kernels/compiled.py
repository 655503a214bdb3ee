"""The decorator of every kernel: numba's, with types that a checker can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Machine code of a function, kept on disk; same arguments, same result.

    ``fastmath`` stays off: solvers compare prices for equality, and reordering a sum changes them.
    """
    return cast("Callable[Parameters, Result]", numba.njit(cache=True)(function))
