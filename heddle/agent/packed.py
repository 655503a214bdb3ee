"""Token arrays as the journal has them: base64 of their machine words.

Smaller than numbers in JSON, and many times as fast to write and to read: a thousand trajectories that go on
after a crash have millions of them. Lists of numbers are read as well.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, PlainValidator


def pack(value: object) -> str:
    """What ``orjson`` asks of a value that it does not know. Raises ``TypeError`` for all but arrays."""
    if not isinstance(value, array):
        raise TypeError(f"a journal has no place for a {type(value).__name__}")
    return b64encode(value).decode("ascii")


def _unpack(kind: Literal["i", "d"], value: object) -> array[int] | array[float]:
    """Raises ``ValueError``, which a validation reports."""
    if isinstance(value, str):
        unpacked: array[int] | array[float] = array(kind)
        unpacked.frombytes(b64decode(value, validate=True))
        return unpacked
    if not isinstance(value, list):
        raise ValueError("neither packed numbers nor a list of them")
    try:
        return array(kind, value)
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"no list of numbers: {exc}") from exc


def _as_runs(value: object) -> object:
    """Versions one by one, as they were written once."""
    if isinstance(value, list) and all(isinstance(version, int) for version in value):
        return version_runs(value)
    return value


def version_runs(weight_versions: Sequence[int]) -> list[tuple[int, int]]:
    """Version and length of each run of equal versions."""
    if weight_versions and weight_versions.count(weight_versions[0]) == len(weight_versions):
        return [(weight_versions[0], len(weight_versions))]
    return [(version, len(list(same))) for version, same in groupby(weight_versions)]


PackedIds: TypeAlias = Annotated[Sequence[int], PlainValidator(lambda value: _unpack("i", value))]
PackedFloats: TypeAlias = Annotated[Sequence[float], PlainValidator(lambda value: _unpack("d", value))]
VersionRuns: TypeAlias = Annotated[list[tuple[int, int]], BeforeValidator(_as_runs)]
"""Version and length of each run of tokens of one version."""
