"""The format of the event log: one header line, then one JSON line per event with the commands it gave.

    {"heddle_event_log":1,"settings":{...}}
    {"seq":0,"now":0.5,"event":{"type":"PoolRequested","budget":2},"commands":[{"type":"StartWorker",...}]}

``seq`` counts from 0 without gaps. An event that changed nothing also has ``"ignored":"<reason>"``. Only the
format lives here; files are written and read elsewhere. Floats must be finite: JSON has no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.control.build import PlaneSettings
from heddle.control.commands import Command
from heddle.control.events import Event
from heddle.control.state import IgnoreReason
from heddle.errors import ConfigError, StoreError
from heddle.validation import in_words

FORMAT_VERSION = 1
"""Grows when a log of the version before can no longer be read."""

_HEADER_KEY = "heddle_event_log"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log."""

    seq: int
    now: float
    event: Event
    commands: tuple[Command, ...]
    ignored: IgnoreReason | None = None


def encode_header(settings: PlaneSettings) -> bytes:
    """The first line, without its newline."""
    return orjson.dumps({_HEADER_KEY: FORMAT_VERSION, "settings": settings})


def decode_header(line: bytes) -> PlaneSettings:
    """Raises ``StoreError`` where the line heads no event log, or one of another version."""
    header = _load_object(line)
    version = header.get(_HEADER_KEY)
    if version is None:
        raise StoreError(f"not an event log: the first line lacks {_HEADER_KEY!r}")
    if version != FORMAT_VERSION:
        raise StoreError(f"event log of version {version}, but this is the reader of {FORMAT_VERSION}")
    try:
        return _settings().validate_python(header.get("settings"))
    except (ValidationError, ConfigError) as exc:
        raise StoreError(f"bad header of an event log: {in_words(exc)}") from exc


def encode_entry(
    seq: int,
    now: float,
    event: Event,
    commands: Sequence[Command],
    ignored: IgnoreReason | None = None,
) -> bytes:
    """One line, without its newline. Raises ``StoreError`` for what JSON cannot carry."""
    try:
        line: dict[str, Any] = {
            "seq": seq,
            "now": now,
            "event": _tagged(event),
            "commands": [_tagged(command) for command in commands],
        }
        if ignored is not None:
            line["ignored"] = ignored
        return orjson.dumps(line)
    except orjson.JSONEncodeError as exc:
        raise StoreError(f"cannot encode event {seq}, {event!r}: {exc}") from exc


def decode_entry(line: bytes) -> LogEntry:
    """The inverse of :func:`encode_entry`. Raises ``StoreError`` that says what is wrong."""
    fields = _load_object(line)
    try:
        ignored = fields.get("ignored")
        return LogEntry(
            seq=_int().validate_python(fields["seq"]),
            now=_float().validate_python(fields["now"]),
            event=_decode_tagged(fields["event"], _adapters(Event)),
            commands=tuple(_decode_tagged(command, _adapters(Command)) for command in fields["commands"]),
            ignored=None if ignored is None else IgnoreReason(ignored),
        )
    except KeyError as exc:
        raise StoreError(f"bad entry of an event log: it lacks {exc}") from exc
    except (TypeError, ValueError) as exc:
        raise StoreError(f"bad entry of an event log: {in_words(exc)}") from exc


def encode_commands(commands: Sequence[Command]) -> bytes:
    """Commands as they stand in the log; equal commands give equal bytes."""
    return orjson.dumps([_tagged(command) for command in commands])


def _tagged(item: Event | Command) -> orjson.Fragment:
    """The item as a JSON object whose first key is the name of its class."""
    tag = b'{"type":"%b"' % type(item).__name__.encode()
    body = orjson.dumps(item)
    return orjson.Fragment(tag + (b"}" if body == b"{}" else b"," + body[1:]))


def _decode_tagged(fields: object, adapters: Mapping[str, TypeAdapter[Any]]) -> Any:
    """Typed by the adapters: each validates exactly one of the classes."""
    if not isinstance(fields, dict):
        raise ValueError(f"{fields!r} is no object")
    tag = fields["type"]
    adapter = adapters.get(tag)
    if adapter is None:
        raise ValueError(f"unknown type {tag!r}")
    return adapter.validate_python({key: value for key, value in fields.items() if key != "type"})


def _load_object(line: bytes) -> dict[str, Any]:
    try:
        loaded = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise StoreError(f"not a line of JSON: {exc}") from exc
    if not isinstance(loaded, dict):
        raise StoreError("not a JSON object")
    return loaded


# Made when a log is first read: a coordinator only writes one.


@cache
def _adapters(union: Any) -> Mapping[str, TypeAdapter[Any]]:
    return MappingProxyType({cls.__name__: TypeAdapter(cls) for cls in get_args(union)})


@cache
def _settings() -> TypeAdapter[PlaneSettings]:
    return TypeAdapter(PlaneSettings)


@cache
def _int() -> TypeAdapter[int]:
    return TypeAdapter(int)


@cache
def _float() -> TypeAdapter[float]:
    return TypeAdapter(float)
