"""The event log's format: exact round trips, and errors that say what is wrong."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.control.build import PlaneSettings
from heddle.control.commands import Command, Generate
from heddle.control.events import DispatchPaused, Event, PoolRequested
from heddle.control.log import (
    LogEntry,
    decode_entry,
    decode_header,
    encode_commands,
    encode_entry,
    encode_header,
)
from heddle.control.state import IgnoreReason
from heddle.errors import StoreError
from heddle.planning.profile import DegreeProfile, Profile
from heddle.types import TrajectoryId, WorkerId

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(min_value=-(2**53), max_value=2**53))

st.register_type_strategy(
    Profile,
    st.builds(
        lambda kv, step_s: Profile(
            "gpu", "model", 4096.0, (DegreeProfile(1, (1, 8), (step_s, 2 * step_s), 4, kv, None),)
        ),
        st.none() | st.integers(0, 1 << 40),
        st.floats(1e-9, 1e3),
    ),
)

TIMES = st.floats(min_value=0, max_value=1e12)


@pytest.mark.parametrize("cls", get_args(Event), ids=lambda cls: cls.__name__)
@given(data=st.data(), now=TIMES, ignored=st.none() | st.sampled_from(IgnoreReason))
def test_every_event_survives_the_log(
    cls: type[Event], data: st.DataObject, now: float, ignored: IgnoreReason | None
) -> None:
    """Decoding gives the same event, encoding that gives the same bytes."""
    event = data.draw(st.from_type(cls))

    line = encode_entry(7, now, event, (), ignored)

    assert decode_entry(line) == LogEntry(7, now, event, (), ignored)
    assert encode_entry(7, now, decode_entry(line).event, (), ignored) == line
    assert b"\n" not in line


@pytest.mark.parametrize("cls", get_args(Command), ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_command_survives_the_log(cls: type[Command], data: st.DataObject) -> None:
    """Decoding gives the same commands, encoding those gives the same bytes."""
    commands = (data.draw(st.from_type(cls)), data.draw(st.from_type(cls)))

    line = encode_entry(0, 1.0, DispatchPaused(), commands)

    assert decode_entry(line).commands == commands
    assert encode_commands(decode_entry(line).commands) == encode_commands(commands)


def test_an_entry_is_one_readable_line() -> None:
    """The format, spelled out."""
    command = Generate(TrajectoryId("a0"), WorkerId("w0"), 2, -1.0, None)

    line = encode_entry(3, 0.5, PoolRequested(2), [command], IgnoreReason.NO_CHANGE)

    assert line.decode() == (
        '{"seq":3,"now":0.5,"event":{"type":"PoolRequested","budget":2,"expected_tokens":[]},"commands":[{"type":"Generate",'
        '"trajectory_id":"a0","worker_id":"w0","step_index":2,"priority":-1.0,"prediction":null}],'
        '"ignored":"no_change"}'
    )
    assert encode_entry(0, 0.0, DispatchPaused(), ()).decode() == (
        '{"seq":0,"now":0.0,"event":{"type":"DispatchPaused"},"commands":[]}'
    )


def test_an_entry_without_what_came_later_still_reads() -> None:
    """Fields that older logs lack have defaults."""
    entry = decode_entry(b'{"seq":0,"now":0.5,"event":{"type":"PoolRequested","budget":2},"commands":[]}')

    assert entry.event == PoolRequested(2, expected_tokens=())


@given(settings=st.builds(PlaneSettings))
def test_the_header_rebuilds_the_settings(settings: PlaneSettings) -> None:
    """What heads a log is all that a fresh plane needs."""
    assert decode_header(encode_header(settings)) == settings


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not a line of JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "the first line lacks 'heddle_event_log'"),
        (b'{"heddle_event_log":2}', "event log of version 2, but this is the reader of 1"),
        (b'{"heddle_event_log":1}', "bad header"),
        (b'{"heddle_event_log":1,"settings":{"slots":"many"}}', "bad header"),
    ],
)
def test_a_foreign_header_is_refused(line: bytes, complaint: str) -> None:
    """The error says why this heads no event log."""
    with pytest.raises(StoreError, match=complaint):
        decode_header(line)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"seq":0', "not a line of JSON"),
        (b'{"seq":0,"now":1.0,"commands":[]}', "it lacks 'event'"),
        (b'{"seq":0,"now":1.0,"event":{"type":"Nonsense"},"commands":[]}', "unknown type 'Nonsense'"),
        (b'{"seq":0,"now":1.0,"event":{"type":"PoolRequested"},"commands":[]}', "budget"),
        (b'{"seq":0,"now":null,"event":{"type":"DispatchPaused"},"commands":[]}', "valid number"),
        (b'{"seq":0,"now":1.0,"event":3,"commands":[]}', "3 is no object"),
    ],
)
def test_a_bad_entry_is_refused(line: bytes, complaint: str) -> None:
    """The error says what is wrong with the line."""
    with pytest.raises(StoreError, match=re.escape(complaint)):
        decode_entry(line)


def test_what_json_cannot_carry_is_refused() -> None:
    """A lone surrogate is no text."""
    command = Generate(TrajectoryId("\ud800"), WorkerId("w0"), 0, 0.0, None)

    with pytest.raises(StoreError, match="cannot encode event 0"):
        encode_entry(0, 0.0, DispatchPaused(), [command])
