"""A mock as a process: ``python -m heddle.testing.mock_sglang --port 30000``.

SGLang's own arguments by their names (those that the mock heeds), and a pace. SIGTERM waits for requests in
flight, as a real server does; SIGINT ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields

from heddle.testing.mock_sglang.server import MockSGLang
from heddle.testing.mock_sglang.settings import MockSettings, MockTiming

_OWN = {"script", "timing", "store", "checkpoints"}


def main(argv: list[str] | None = None) -> None:
    """Serve until a signal; the address is the first line of standard output."""
    options = _parser().parse_args(argv)
    given = {name: value for name, value in vars(options).items() if value is not None}
    host, port = given.pop("host"), given.pop("port")
    timing = MockTiming((given.pop("decode_ms") / 1e3,), given.pop("prefill_us_per_token") / 1e6)
    settings = MockSettings(timing=timing, **given)
    asyncio.run(_serve(settings, host, port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heddle.testing.mock_sglang", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30_000, help="0 takes a free one")
    parser.add_argument("--decode-ms", type=float, default=10.0, help="of a decoding step")
    parser.add_argument("--prefill-us-per-token", type=float, default=50.0)
    for field in fields(MockSettings):
        if field.name in _OWN:
            continue
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction)
        else:
            kind = str if field.type in ("str", "str | None") else float if field.type == "float" else int
            parser.add_argument(option, type=kind, help=f"default: {field.default}")
    return parser


async def _serve(settings: MockSettings, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    terminated, interrupted = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, terminated.set)
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    mock = MockSGLang(settings, host=host, port=port)
    await mock.start()
    sys.stdout.write(mock.url + "\n")
    sys.stdout.flush()
    waits = {asyncio.create_task(event.wait()): event for event in (terminated, interrupted, mock.crashed)}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await mock.stop(graceful=any(waits[task] is terminated for task in done))
    if mock.crash_reason is not None:
        sys.exit(f"the mock crashed: {mock.crash_reason}")


if __name__ == "__main__":
    main()
