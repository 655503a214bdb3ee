"""The rehearsal before a coordinator's first worker is started."""

from __future__ import annotations

from dataclasses import replace

import structlog

from heddle.config import HeddleConfig
from heddle.control.build import PlaneSettings
from heddle.planning.profile_csv import ProfileTable
from heddle.rehearsal.process import rehearse_beside
from heddle.rehearsal.recorded import NothingRecorded
from heddle.rehearsal.request import RehearsalRequest

log = structlog.get_logger(__name__)


async def rehearsed(
    config: HeddleConfig, settings: PlaneSettings, table: ProfileTable, budget: int, pool: str | None
) -> PlaneSettings:
    """The settings with what the rehearsal chose; as they are where nothing was recorded, or in time.

    ``pool`` are the degrees of workers that are there already. Raises ``ConfigError`` for recorded
    trajectories that cannot be read or played.
    """
    decisions = config.decisions
    request = RehearsalRequest(
        recorded=str(decisions.rehearse),
        settings=settings,
        gpus=budget,
        table=table,
        gpu=decisions.profile_gpu,
        model=decisions.profile_model,
        pool=None if pool is None else tuple(map(int, pool.split("+"))),
        tool_concurrency=config.tools.concurrency,
    )
    try:
        found = await rehearse_beside(request, decisions.rehearse_within_s)
    except NothingRecorded as exc:
        log.info("nothing to rehearse", reason=exc.message, path=exc.path)
        return settings
    except TimeoutError:
        log.warning("rehearsal given up", within_s=decisions.rehearse_within_s)
        return settings
    log.info("rehearsed", pool=found.pool, way=found.way, gain=round(found.gain, 3), of=found.simulations)
    return replace(settings, **found.choices)
