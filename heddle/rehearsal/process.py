"""A rehearsal in a process of its own: ``python -m heddle.rehearsal.process PARENT_PID``.

The request goes in, the answer comes out. Simulations take seconds to minutes of a core; beside an event loop
they would hold up everything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError, HeddleError
from heddle.rehearsal.recorded import NothingRecorded
from heddle.rehearsal.request import Found, RehearsalRequest, answer
from heddle.signals import end_with_parent
from heddle.validation import in_words

_REQUEST: TypeAdapter[RehearsalRequest] = TypeAdapter(RehearsalRequest)
_FOUND: TypeAdapter[Found] = TypeAdapter(Found)
_NOTHING_RECORDED, _FAILED = 3, 2
"""Exit codes; standard error then has the reason."""


async def rehearse_beside(request: RehearsalRequest, within_s: float) -> Found:
    """Have a process of its own answer; it is killed where nobody waits any more.

    Raises ``NothingRecorded``, ``ConfigError`` with what the process says, and ``TimeoutError``.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "heddle.rehearsal.process", str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(within_s):
            said, complaint = await process.communicate(orjson.dumps(request, default=str))
    finally:
        if process.returncode is None:
            process.kill()
            await uninterrupted(process.wait())
    reason = complaint.decode(errors="replace").strip()
    if process.returncode == _NOTHING_RECORDED:
        raise NothingRecorded(reason, path=request.recorded)
    if process.returncode:
        raise ConfigError(f"the rehearsal failed: {reason.splitlines()[-1] if reason else 'it was killed'}")
    return _FOUND.validate_json(said)


def main() -> int:
    """Answer the request on standard input, for as long as the process that sent it is there."""
    end_with_parent(int(sys.argv[1]))
    try:
        request = _REQUEST.validate_json(sys.stdin.buffer.read())
        sys.stdout.buffer.write(orjson.dumps(answer(request)))
    except NothingRecorded as exc:
        sys.stderr.write(exc.message)
        return _NOTHING_RECORDED
    except (HeddleError, ValidationError) as exc:
        sys.stderr.write(in_words(exc))
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
