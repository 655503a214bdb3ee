"""What servers count of their steps becomes a line, a flag, gauges and a profile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from heddle.agent.ports import Engine, GenerationRequest
from heddle.coordinator.broadcast import Broadcaster
from heddle.coordinator.telemetry import Telemetry
from heddle.engines.fake import FakeEngine
from heddle.engines.sglang.adapter import SGLangEngine
from heddle.metrics import Metrics
from heddle.planning.profile import DegreeProfile, Profile
from heddle.planning.profile_csv import parse_profiles
from heddle.testing import MockSettings, MockSGLang, MockTiming
from heddle.types import SamplingParams, WorkerId

STEP_S = (0.004, 0.005, 0.006, 0.007)
"""Of one, two, three and four running generations; a busy machine makes them longer."""


class Pool:
    """Engines that run, all of degree 2."""

    def __init__(self, engines: Mapping[WorkerId, Engine]) -> None:
        self._engines = engines

    def engines(self) -> Mapping[WorkerId, Engine]:
        return self._engines

    def tp_degree(self, worker_id: WorkerId) -> int:
        return 2


async def decode(engine: SGLangEngine, batch: int, tokens: int = 60) -> None:
    """So many generations at once."""
    requests = [
        GenerationRequest(f"r{number}", [5, 6, 7], tokens, SamplingParams(), ignore_end=True)
        for number in range(batch)
    ]
    await asyncio.gather(*(engine.generate(request, lambda chunk: None) for request in requests))


async def test_a_server_that_is_slower_than_its_profile_is_told_of(tmp_path: Path) -> None:
    """The profile promises a tenth of what its steps take; an engine that tells nothing is not asked."""
    settings = MockSettings(incremental_streaming_output=True, timing=MockTiming(STEP_S))
    promised = Profile("here", "mock", 0.0, (DegreeProfile(2, (1, 4), (STEP_S[0] / 10, STEP_S[3] / 10)),))
    metrics, broadcaster, profile_path = Metrics(), Broadcaster(), tmp_path / "profile.csv"
    async with MockSGLang(settings) as mock:
        engine = await SGLangEngine.connect(mock.url)
        pool = Pool({WorkerId("w0"): engine, WorkerId("w1"): FakeEngine(slots=1)})
        telemetry = Telemetry(pool, metrics, broadcaster, expected=promised, profile_path=profile_path)
        await telemetry.look()
        await telemetry.save_profile()
        assert telemetry.pace(WorkerId("w0")) is None
        assert not profile_path.exists()
        for batch in (1, 4, 2, 3):
            await decode(engine, batch)
            await telemetry.look()
        await telemetry.save_profile()
        await engine.close()
    pace = telemetry.pace(WorkerId("w0"))
    assert pace is not None
    assert pace.behind
    assert pace.ratio is not None
    assert pace.ratio > 5.0
    assert pace.line is not None
    assert pace.line.step_s(4) >= STEP_S[3] * 0.9
    assert telemetry.pace(WorkerId("w1")) is None
    events = broadcaster.listen(0)
    event = await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    assert (event.name, event.data["worker_id"]) == ("worker.behind", "w0")
    rendered = metrics.render().decode()
    assert 'heddle_worker_behind{worker="w0"} 1.0' in rendered
    assert 'heddle_worker_cache_hit_ratio{worker="w0"}' in rendered
    measured = parse_profiles(profile_path.read_text()).select()
    assert measured[2].batches == (1, 2, 4)


async def test_a_server_that_does_not_answer_is_left_to_its_supervisor(tmp_path: Path) -> None:
    """Nothing is raised, and nothing is known of it."""
    async with MockSGLang() as mock:
        engine = await SGLangEngine.connect(mock.url)
    pool = Pool({WorkerId("w0"): engine})
    telemetry = Telemetry(pool, Metrics(), Broadcaster(), expected=None, profile_path=tmp_path / "p.csv")
    await telemetry.look()
    assert telemetry.pace(WorkerId("w0")) is None
    await engine.close()
