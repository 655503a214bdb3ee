"""Server-sent events, as far as Heddle sends them: ``id``, ``event``, ``data`` and comments."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson

from heddle.api.service import ServerEvent
from heddle.client.errors import ServerFailure


async def parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Events from the bytes of a stream; a last one without its blank line is not complete."""
    event_id, name, data = b"", b"", b""
    async for line in _lines(chunks):
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            match field:
                case b"id":
                    event_id = value
                case b"event":
                    name = value
                case b"data":
                    data += value
        elif data:
            yield _event(event_id, name, data)
            name, data = b"", b""


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines that end in a line feed and nothing else: U+2028 and its kin are part of the text."""
    held: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for line in rest:
            yield b"".join(held)
            held = [line]


def _event(event_id: bytes, name: bytes, data: bytes) -> ServerEvent:
    try:
        return ServerEvent(int(event_id), name.decode(), orjson.loads(data))
    except ValueError as exc:
        raise ServerFailure("the server sent what is no event", status=200) from exc
