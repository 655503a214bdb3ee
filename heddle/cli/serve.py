"""``heddle serve``: the coordinator and its REST surface until a signal."""

from __future__ import annotations

import asyncio

from heddle.cli.logs import log_to_stderr
from heddle.cli.output import ExitCode, Output
from heddle.cli.signals import interrupts, run_interruptible
from heddle.config import HeddleConfig
from heddle.tools.sandbox import Isolation, detect_isolation
from heddle.types import Json


def serve(config: HeddleConfig, output: Output) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code; a second signal does not wait."""
    log_to_stderr(config)
    isolation = detect_isolation(config.tools.isolation)
    if not isolation.complete:
        output.note(isolation.detail)
    return run_interruptible(_serve(config, isolation, output))


async def _serve(config: HeddleConfig, isolation: Isolation, output: Output) -> int:
    from heddle import app  # imported late: it loads every adapter

    def announce(url: str) -> None:
        if output.json:
            output.line(_started(url, config, isolation))
        else:
            output.text(_started_text(url, config, isolation))

    stop = asyncio.Event()
    with interrupts(stop):
        await app.serve(config, on_started=announce, stop=stop)
    if output.json:
        output.line({"event": "stopped"})
    else:
        output.text("stopped")
    return ExitCode.OK


def _started(url: str, config: HeddleConfig, isolation: Isolation) -> dict[str, Json]:
    return {
        "event": "started",
        "url": url,
        "isolation": isolation.mode,
        "isolation_complete": isolation.complete,
        "engine": config.engine.kind,
        "pool": config.engine.pool,
        "slots": config.engine.slots,
    }


def _started_text(url: str, config: HeddleConfig, isolation: Isolation) -> str:
    engine = config.engine
    return (
        f"Heddle serves {url} | workers: {engine.kind}, pool {engine.pool}, {engine.slots} slots each | "
        f"sandbox: {isolation.mode} | ctrl-C stops"
    )
