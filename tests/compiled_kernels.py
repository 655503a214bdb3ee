"""Which of the planners' kernels this process has loaded, for tests that nothing is left to compile."""

from __future__ import annotations

import sys

from numba.core.registry import CPUDispatcher


def compiled() -> dict[str, int]:
    """Kernels that were loaded into this process, and for how many kinds of arguments each is compiled."""
    names = [name for name in sys.modules if name.startswith("heddle.planning.kernels.")]
    found = [(name, vars(sys.modules[name])) for name in names]
    return {
        f"{name}.{key}": len(value.signatures)
        for name, members in found
        for key, value in members.items()
        if isinstance(value, CPUDispatcher)
    }
