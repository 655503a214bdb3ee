"""The same schedules on real engine processes: killed, stopped for good, slowed down, misunderstood.

What the engines say differs from run to run, so records are not compared with undisturbed ones; every other
promise is the same. A few schedules; some dozens with ``--full``. A failure names its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from chaos_checks import check_aborted, check_failed, check_once_each, check_released, check_replays, play
from chaos_checks import records_of as finished_records
from chaos_world import Surroundings, hurry
from process_plant import ProcessPlant
from schedule import Fault, Incident, Schedule, draw

from heddle.config import HeddleConfig, parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.engine_kits import engine_kit
from heddle.engines.embedded.launcher import EmbeddedLauncher
from heddle.engines.supervisor import HealthCheck
from heddle.types import Json, TrajectoryStatus

pytestmark = pytest.mark.timeout(3600)

SCHEDULES, ALL_SCHEDULES = 3, 40
MODEL = "smollm2-135m-instruct"
CONTEXT_TOKENS = 1024
FIRST_EVENT = 6
"""Workers are up, and the first steps are under way."""
SOONER = 5
"""So much less happens than between fakes."""
PROCESS_FAULTS = (Fault.CRASH_WORKER, Fault.HANG, Fault.SLOW)


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    with hurry(HealthCheck(every_s=0.5, deadline_s=2.0, failures=2)):
        yield


@pytest.fixture(scope="module")
def kit() -> EngineKit:
    config: HeddleConfig = parse_config({"engine": {"model": MODEL, "context_tokens": CONTEXT_TOKENS}})
    return asyncio.run(engine_kit(config))


def surroundings(kit: EngineKit, seed: int) -> Surroundings:
    """Every other world has its calls constrained, so that each step has one."""
    assert isinstance(kit.launcher, EmbeddedLauncher)
    request: dict[str, Json] = {
        "limits": {"max_steps": 2, "max_tokens": 48, "max_tokens_per_step": 24},
        "sampling": {"seed": seed},
        "tools": {"constrained": seed % 2 == 0},
    }
    launcher = EmbeddedLauncher(kit.launcher.model, context_tokens=CONTEXT_TOKENS, ready_timeout_s=120.0)
    return Surroundings(
        plant=ProcessPlant(kit, launcher),
        token_deadline_s=5.0,
        context_tokens=CONTEXT_TOKENS,
        deadline_s=300.0,
        request=request,
    )


def for_processes(schedule: Schedule) -> Schedule:
    """Less work, of which real engines do little; and early enough to strike, a fault of processes."""
    fault = PROCESS_FAULTS[schedule.seed % len(PROCESS_FAULTS)]
    sooner = (replace(drawn, after_events=drawn.after_events // SOONER) for drawn in schedule.incidents)
    incidents = (Incident(FIRST_EVENT, fault, schedule.seed), *sooner)
    ordered = tuple(sorted(incidents, key=lambda incident: incident.after_events))
    return replace(schedule, workers=2, batches=1, prompts=min(schedule.prompts, 2), incidents=ordered)


def test_every_promise_holds_on_real_engines(kit: EngineKit, full: bool) -> None:
    """Whatever befell them."""
    seen: set[TrajectoryStatus] = set()
    for seed in range(ALL_SCHEDULES if full else SCHEDULES):
        schedule = for_processes(draw(seed))
        try:
            world = play(schedule, surroundings(kit, seed))
            records = finished_records(world)
            check_once_each(world, records)
            for record in records:
                seen.add(record.status)
                if record.status is TrajectoryStatus.FAILED:
                    check_failed(record)
                elif record.status is TrajectoryStatus.ABORTED:
                    check_aborted(world, record)
            check_released(world)
            check_replays(world)
        except Exception as exc:
            raise AssertionError(f"seed {seed}: {schedule}") from exc
    assert seen & {TrajectoryStatus.COMPLETED, TrajectoryStatus.TRUNCATED}
