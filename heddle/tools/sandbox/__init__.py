"""The local sandbox: model-written Python, one isolated process tree a run."""

from heddle.tools.sandbox.backend import PythonSandbox
from heddle.tools.sandbox.directories import SandboxDirectories
from heddle.tools.sandbox.isolation import Isolation, detect_isolation
from heddle.tools.sandbox.limits import SandboxLimits
from heddle.tools.sandbox.modes import Interpreter, find_interpreter, this_interpreter

__all__ = [
    "Interpreter",
    "Isolation",
    "PythonSandbox",
    "SandboxDirectories",
    "SandboxLimits",
    "detect_isolation",
    "find_interpreter",
    "this_interpreter",
]
