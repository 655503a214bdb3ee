"""``heddle serve``: the coordinator and its REST surface until a signal."""

from __future__ import annotations

import asyncio

from heddle.cli.logs import log_to_stderr
from heddle.cli.output import ExitCode, Output
from heddle.cli.signals import interrupts, run_interruptible
from heddle.config import HeddleConfig


def serve(config: HeddleConfig, output: Output) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code; a second signal does not wait."""
    log_to_stderr(config)
    return run_interruptible(_serve(config, output))


async def _serve(config: HeddleConfig, output: Output) -> int:
    from heddle import app  # imported late: it loads every adapter

    def announce(url: str) -> None:
        _announce(url, config, output)

    stop = asyncio.Event()
    with interrupts(stop):
        await app.serve(config, on_started=announce, stop=stop)
    if output.json:
        output.line({"event": "stopped"})
    else:
        output.text("stopped")
    return ExitCode.OK


def _announce(url: str, config: HeddleConfig, output: Output) -> None:
    from heddle.tools.sandbox import detect_isolation

    isolation = detect_isolation(config.tools.isolation)
    engine = config.engine
    if output.json:
        output.line(
            {
                "event": "started",
                "url": url,
                "isolation": isolation.name,
                "engine": engine.kind,
                "pool": engine.pool,
                "slots": engine.slots,
            }
        )
        return
    output.text(
        f"Heddle serves {url}   workers: {engine.kind}, pool {engine.pool}, {engine.slots} slots each   "
        f"sandbox: {isolation.name}   (ctrl-C stops)"
    )
