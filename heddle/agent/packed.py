"""Journal payloads: a line of JSON, and behind it the machine words of its token arrays.

In the JSON an array says where its words begin and how many there are. So they are written and read as fast
as they are copied: a thousand trajectories that go on after a crash have millions of tokens. Payloads of
before are read as well: base64 of the words in the JSON itself, or lists of numbers.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Literal, TypeAlias, TypeVar

import orjson
from pydantic import BeforeValidator, PlainValidator, TypeAdapter, ValidationInfo

_Entry = TypeVar("_Entry")


def pack(entry: object) -> bytes:
    """Raises ``TypeError`` where there is something in it that is neither JSON nor an array of numbers."""
    words: list[bytes] = []
    length = 0

    def place(value: object) -> dict[str, int]:
        nonlocal length
        if not isinstance(value, array):
            raise TypeError(f"a journal has no place for a {type(value).__name__}")
        words.append(value.tobytes())
        at, length = length, length + len(words[-1])
        return {"at": at, "items": len(value)}

    line = orjson.dumps(entry, default=place)
    return b"".join((line, b"\n", *words)) if words else line


def unpack(adapter: TypeAdapter[_Entry], payload: bytes) -> _Entry:
    """Raises ``pydantic.ValidationError`` on a foreign payload."""
    end = payload.find(b"\n")
    if end < 0:
        return adapter.validate_json(payload, context=memoryview(b""))
    return adapter.validate_json(payload[:end], context=memoryview(payload)[end + 1 :])


def _array(kind: Literal["i", "d"], value: object, words: memoryview) -> array[int] | array[float]:
    """Raises ``ValueError``, which a validation reports."""
    unpacked: array[int] | array[float] = array(kind)
    if isinstance(value, dict):  # no pattern to match: this runs for every half-step of a recovery
        at, items = value.get("at"), value.get("items")
        if not (isinstance(at, int) and isinstance(items, int)):
            raise ValueError("the place of an array has no beginning or no length")
        end = at + items * unpacked.itemsize
        if not 0 <= at <= end <= len(words):
            raise ValueError(f"{items} numbers from byte {at} are not there")
        unpacked.frombytes(words[at:end])
    elif isinstance(value, str):
        unpacked.frombytes(b64decode(value, validate=True))
    elif isinstance(value, list):
        try:
            unpacked.extend(value)
        except (TypeError, OverflowError) as exc:
            raise ValueError(f"no list of numbers: {exc}") from exc
    else:
        raise ValueError("neither the place of an array nor packed numbers nor a list of them")
    return unpacked


def _ids(value: object, info: ValidationInfo[memoryview]) -> array[int] | array[float]:
    return _array("i", value, info.context)


def _floats(value: object, info: ValidationInfo[memoryview]) -> array[int] | array[float]:
    return _array("d", value, info.context)


def _as_runs(value: object) -> object:
    """Versions one by one, as they were written once."""
    if isinstance(value, list) and value and isinstance(value[0], int):
        return version_runs(value)
    return value


def version_runs(weight_versions: Sequence[int]) -> list[tuple[int, int]]:
    """Version and length of each run of equal versions."""
    if weight_versions and weight_versions.count(weight_versions[0]) == len(weight_versions):
        return [(weight_versions[0], len(weight_versions))]
    return [(version, len(list(same))) for version, same in groupby(weight_versions)]


PackedIds: TypeAlias = Annotated[Sequence[int], PlainValidator(_ids)]
PackedFloats: TypeAlias = Annotated[Sequence[float], PlainValidator(_floats)]
VersionRuns: TypeAlias = Annotated[list[tuple[int, int]], BeforeValidator(_as_runs)]
"""Version and length of each run of tokens of one version."""
