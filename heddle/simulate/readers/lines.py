"""Lines of JSON from outside, checked against a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from heddle.errors import InvalidRequest
from heddle.simulate.options import MOST_SECONDS
from heddle.validation import first_fault

Row = TypeVar("Row")

MOST_TOKENS = 10**9
"""Beyond these a number is a slip of a unit."""

Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=MOST_SECONDS * 1000.0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


def numbered(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Each line that is not blank, with where it stands: ``name:number``."""
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        stripped = line.strip()
        if stripped:
            yield f"{name}:{number}", stripped


def decode(adapter: TypeAdapter[Row], line: bytes, where: str) -> Row:
    """The line as the adapter's type, numbers not taken for text nor text for numbers.

    Raises ``InvalidRequest`` for the first field that is wrong.
    """
    try:
        return adapter.validate_json(line, strict=True)
    except ValidationError as exc:
        fault = first_fault(exc)
        raise InvalidRequest(fault.message, path=f"{where}: {fault.where}" if fault.where else where) from exc


def some(count: int, one: str, many: str) -> str:
    """``1 call``, ``2,000 calls``."""
    return f"{count:,} {one if count == 1 else many}"


def notes_of(*candidates: tuple[int, str]) -> tuple[str, ...]:
    """The notes whose count is not 0."""
    return tuple(text for count, text in candidates if count)
