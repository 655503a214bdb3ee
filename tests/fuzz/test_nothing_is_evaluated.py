"""No text becomes code: nothing in the package evaluates or unpickles what came from outside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "heddle"
ALLOWED = {
    ("tools/sandbox/inside/program.py", "exec"),  # the program itself, after it has become nobody
    ("tools/sandbox/inside/program.py", "compile"),
    ("environments/inside.py", "exec"),  # solutions and expressions, inside of the sandbox
    ("environments/inside.py", "eval"),
    ("environments/inside.py", "compile"),
    ("tools/sandbox/inside/main.py", "marshal.load"),  # what the coordinator wrote into a memfd
}
NAMES = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "yaml"}


def evaluations(source: str) -> set[str]:
    """Calls that make code or objects of data."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                if module in MODULES and name.startswith("load"):
                    found.add(f"{module}.{name}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.add("allow_pickle")
            case _:
                pass
    return found


def test_nothing_is_evaluated() -> None:
    """Outside of the sandbox."""
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name in evaluations(path.read_text(encoding="utf-8"))
    }
    assert found <= ALLOWED, found - ALLOWED


@pytest.mark.parametrize("code", ["eval('1')", "import pickle\npickle.loads(b'')", "exec(text)"])
def test_the_search_finds_what_it_looks_for(code: str) -> None:
    assert evaluations(code)
