"""What runs inside the sandbox, around code that a model wrote. Standard library only.

The text of this file is the first part of every program sent there; :mod:`heddle.environments.programs`
appends the call. Nothing in Heddle's own process calls these functions.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import types
from collections.abc import Callable, Sequence

LONGEST_REPORT = 2000
"""Characters of one report, so that six of them fit the sandbox's limit on output."""


class _Nowhere(io.TextIOBase):
    """Takes what a submission prints, so that a flood of it cannot drown the report."""

    def write(self, text: str) -> int:
        return len(text)


def brief(error: BaseException) -> str:
    """An error in one line; a traceback through this file would tell the model nothing."""
    return f"{type(error).__name__}: {error}"[:160]


def show_last_value(source: str) -> None:
    """Run ``source`` and, as a notebook does, print the value of its last expression."""
    scope: dict[str, object] = {"__name__": "__main__"}
    try:
        tree = ast.parse(source, "code")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "code", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "code", "eval"), scope)
            if value is not None:
                sys.stdout.write(f"{value}\n")
    except Exception as error:  # the submitted code may raise anything; it is its result
        sys.stdout.write(f"{brief(error)}\n")
        sys.exit(1)


def call_and_report(marker: str, name: str, source: str, calls: Sequence[str]) -> None:
    """Define ``source``, call its function ``name`` with each JSON list of ``calls``, report each call.

    A report is one line: the marker, then ``[index, "value" or "error", value, text]``. Index -1 says
    that no call could be made. Lines are flushed one by one: a later endless loop loses none.
    """
    out = sys.stdout

    def report(index: int, kind: str, value: object, text: str) -> None:
        line = json.dumps([index, kind, value, text[:160]])
        if len(line) > LONGEST_REPORT:
            line = json.dumps([index, "error", None, "the value is too long"])
        out.write(f"\n{marker}{line}\n")
        out.flush()

    with contextlib.redirect_stdout(_Nowhere()):
        function = _define(name, source, report)
        if function is None:
            return
        for index, arguments in enumerate(calls):
            try:
                value = function(*json.loads(arguments))
                report(index, "value", value, repr(value))
            except BaseException as error:  # SystemExit too: exit() fails one call, not the report
                report(index, "error", None, brief(error))


def _define(
    name: str, source: str, report: Callable[[int, str, object, str], None]
) -> Callable[..., object] | None:
    module = types.ModuleType("submission")
    sys.modules[module.__name__] = module  # dataclasses and pickling look their module up
    try:
        exec(compile(source, "code", "exec"), module.__dict__)
    except BaseException as error:
        report(-1, "error", None, brief(error))
        return None
    function: object = module.__dict__.get(name)
    if not callable(function):
        report(-1, "error", None, f"the code defines no function {name}")
        return None
    return function
