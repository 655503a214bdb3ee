"""What pydantic found wrong, told to the person who wrote it.

One vocabulary for configuration, requests, task files, traces and records: no classes of Python, and where a
name does not exist the one that was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ValidationError

UNKNOWN = "extra_forbidden"
"""The kind of fault of a name that does not exist."""
MISSING = "missing"

_OBJECT = "should be an object with named fields"
_LIST = "should be a list"
_MESSAGES = {
    UNKNOWN: "no such field",
    MISSING: "this field is required",
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "dict_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
}
_ALIKE = 0.75
"""How alike, of 1, two names must be for one to be taken for the other."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in one place."""

    kind: str
    """Pydantic's."""
    location: tuple[str | int, ...]
    message: str

    @property
    def where(self) -> str:
        """The location with dots, empty for the whole."""
        return ".".join(map(str, self.location))

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.location else self.message


def faults(exc: ValidationError, names: Collection[str] = ()) -> Iterator[Fault]:
    """All faults, without the values that are wrong; ``names`` are those that could have been meant."""
    for error in exc.errors(include_url=False, include_context=False, include_input=False):
        kind, location = error["type"], error["loc"]
        message = _MESSAGES.get(kind, error["msg"].removeprefix("Value error, "))
        meant = _meant(location, names) if kind == UNKNOWN else None
        yield Fault(kind, location, f"{message}; did you mean {meant!r}?" if meant else message)


def first_fault(exc: ValidationError, names: Collection[str] = ()) -> Fault:
    """The first of :func:`faults`; there always is one."""
    return next(faults(exc, names))


def in_words(exc: Exception) -> str:
    """One line about an error that pydantic, or somebody else, raised."""
    return str(first_fault(exc)) if isinstance(exc, ValidationError) else str(exc)


def field_names(schema: type[BaseModel]) -> list[str]:
    """Every field of a schema and of those within it, dotted: ``limits``, ``limits.max_steps``."""
    names: list[str] = []
    for name, field in schema.model_fields.items():
        names.append(name)
        for within in _schemas_in(field.annotation):
            names += [f"{name}.{below}" for below in field_names(within)]
    return names


def _schemas_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _schemas_in(argument)


def _meant(location: tuple[str | int, ...], names: Collection[str]) -> str | None:
    """A name written like the wrong one; else the one whose last part is the wrong one's, if there is one."""
    *above, wrong = (part for part in location if isinstance(part, str))
    beside = ".".join([*above, ""])
    siblings = [name.removeprefix(beside) for name in names if name.startswith(beside)]
    siblings = [name for name in siblings if "." not in name]
    alike = difflib.get_close_matches(wrong, siblings, n=1, cutoff=_ALIKE)
    elsewhere = [name for name in names if name.rpartition(".")[2] == wrong]
    if alike:
        return alike[0]
    return elsewhere[0] if len(elsewhere) == 1 else None
