"""``heddle serve``: the coordinator and its REST surface until a signal; or how its servers would start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from heddle.cli.logs import log_to_stderr
from heddle.cli.output import ExitCode, Output
from heddle.cli.signals import interrupts, run_interruptible
from heddle.config import HeddleConfig
from heddle.errors import InvalidRequest
from heddle.garbage import uncollected, young_only
from heddle.tools.sandbox import Isolation, detect_isolation
from heddle.types import Json

if TYPE_CHECKING:
    from heddle.engines.sglang.command import LaunchPlan


def serve(config: HeddleConfig, output: Output) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code; a second signal does not wait."""
    log_to_stderr(config)
    with young_only():
        return run_interruptible(_serve(config, output))


async def _serve(config: HeddleConfig, output: Output) -> int:
    probe = asyncio.get_running_loop().run_in_executor(None, detect_isolation, config.tools.isolation)
    with uncollected():
        from heddle import app  # imported late: it loads every adapter, while other processes try the sandbox

    isolation = await probe
    if not (isolation.complete and isolation.calls_filtered):
        output.note(isolation.detail)

    def announce(url: str) -> None:
        if output.json:
            output.line(_started(url, config, isolation))
        else:
            output.text(_started_text(url, config, isolation))

    stop = asyncio.Event()
    with interrupts(stop):
        await app.serve(config, isolation, on_started=announce, stop=stop)
    if output.json:
        output.line({"event": "stopped"})
    else:
        output.text("stopped")
    return ExitCode.OK


def show_launches(config: HeddleConfig, output: Output) -> int:
    """Print the command and the environment of every SGLang server of the pool, as on an idle machine.

    GPUs that are named need not be here. Raises ``ConfigError`` where the pool does not fit on them.
    """
    from heddle.engine_kits.sglang import device_order, launch_plans  # imported late: adapters are slow

    if config.engine.kind != "sglang" or config.engine.sglang.workers:
        raise InvalidRequest("only SGLang servers that Heddle starts can be shown", path="--dry-run")
    plans = launch_plans(config, device_order(config.engine.sglang, look=False))
    if output.json:
        output.document({"workers": [_launch_document(plan) for plan in plans]})
    else:
        output.text("\n\n".join(f"# {_launch_title(plan)}\n{plan.shell()}" for plan in plans))
    return ExitCode.OK


def _launch_title(plan: LaunchPlan) -> str:
    spec, devices = plan.spec, ",".join(map(str, plan.devices))
    return f"{spec.worker_id}: degree {spec.tp_degree} on devices {devices}, {spec.slots} slots, {plan.url}"


def _launch_document(plan: LaunchPlan) -> dict[str, object]:
    return {
        "worker_id": plan.spec.worker_id,
        "tp_degree": plan.spec.tp_degree,
        "slots": plan.spec.slots,
        "devices": plan.devices,
        "ports": {
            "http": plan.ports.http,
            "nccl": plan.ports.nccl,
            "rendezvous": plan.ports.rendezvous,
            "last": plan.ports.ports[-1],
        },
        "command": plan.command,
        "environment": plan.environment,
        "unset": plan.unset,
    }


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
