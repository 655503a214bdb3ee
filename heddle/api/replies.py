"""Answers: JSON from values, and stored bytes passed on as they are.

Large answers are written in pieces under the client's own pace, and a client that stops reading is
dropped after a while instead of being waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import orjson
from aiohttp import web

from heddle.api.context import ApiTiming

JSON = "application/json"
NDJSON = "application/x-ndjson"

PIECE_BYTES = 64 * 1024
"""Written at once: about what a socket buffer takes."""


class ClientGone(Exception):
    """The client left, or was cut off because it does not read; there is nobody to answer."""


async def reply_json(
    request: web.Request,
    value: object,
    timing: ApiTiming,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer with ``value`` (dataclasses, mappings, sequences) as JSON."""
    return await reply_bytes(request, [orjson.dumps(value)], timing, status=status, headers=headers)


async def reply_bytes(
    request: web.Request,
    parts: Sequence[bytes],
    timing: ApiTiming,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer with ``parts``, one after the other, without joining what is large."""
    size = sum(map(len, parts))
    if size <= PIECE_BYTES:
        body = b"".join(parts)
        return web.Response(status=status, body=body, content_type=content_type, headers=headers)
    response = web.StreamResponse(status=status, headers=headers)
    response.content_type = content_type
    response.content_length = size
    await prepare_or_drop(request, response)
    for piece in _pieces(parts):
        await write_or_drop(request, response, piece, timing)
    return response


async def prepare_or_drop(request: web.Request, response: web.StreamResponse) -> None:
    """Send the headers. Raises ``ClientGone``."""
    try:
        await response.prepare(request)
    except ConnectionError as exc:
        raise ClientGone("left before the answer") from exc


async def write_or_drop(
    request: web.Request, response: web.StreamResponse, data: bytes, timing: ApiTiming
) -> None:
    """Write within ``timing.write_s``; otherwise cut the connection. Raises ``ClientGone``."""
    try:
        async with asyncio.timeout(timing.write_s):
            await response.write(data)
    except TimeoutError as exc:
        if request.transport is not None:
            request.transport.abort()
        raise ClientGone("does not read") from exc
    except ConnectionError as exc:
        raise ClientGone("left during the answer") from exc


def _pieces(parts: Iterable[bytes]) -> Iterable[bytes]:
    """Cut and join into pieces of about ``PIECE_BYTES``."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            held.append(part[start : start + PIECE_BYTES])
            size += len(held[-1])
            if size >= PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)
