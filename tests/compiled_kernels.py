"""Which of the planners' kernels this process has loaded, for tests that nothing is left to compile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

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


def load_and_run(load: Callable[[], None] | None, run: Callable[[], None]) -> None:
    """Loads, runs, and prints what the run compiled beyond."""
    assert load is not None
    load()
    before = compiled()
    run()
    after = compiled()
    assert sum(before.values()) > 0
    sys.stdout.write(f"later: {sorted(kernel for kernel in after if after[kernel] != before.get(kernel))}\n")


def later_compiled(script: str, *arguments: str) -> str:
    """The last line of a script that calls :func:`load_and_run`, in a process that has compiled nothing."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
