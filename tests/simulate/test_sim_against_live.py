"""A live batch and its simulation tell the control plane the same, in the same order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sim_builders import make_hardware

from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator, plane_settings
from heddle.config import parse_config
from heddle.control.events import (
    BatchSubmitted,
    Event,
    StepGenerated,
    ToolsFinished,
    ToolsStarted,
    TrajectoryEnding,
    TrajectoryFinished,
    TrajectorySpec,
)
from heddle.control.log import decode_entry
from heddle.coordinator.assembly import EngineKit
from heddle.engines.fake import FakeEngine, FakeLauncher, FakeModel
from heddle.eventlog import read_event_log
from heddle.simulate.options import SimulationOptions
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.text.byte_tokenizer import TURN_END, ByteTokenizer

OUTPUTS = ((3, 5, 2), (7,), (1, 1), (4, 2, 2, 6), (9, 9))
"""Tokens of each step of each trajectory."""


async def live_events(folder: Path) -> Sequence[Event]:
    """What the control plane heard of a batch of forced lengths on fake engines."""
    config = parse_config(
        {"data_dir": folder, "engine": {"pool": "1+1", "slots": 2, "kind": "fake"}, "log_level": "error"}
    )
    kit = EngineKit(
        FakeLauncher(model=FakeModel(vocabulary=256, end_of_turn_id=TURN_END)),
        ByteTokenizer(),
        FakeEngine.capabilities,
        "fake",
    )
    request = BatchRequest.model_validate(
        {
            "environment": "replay",
            "prompts": [
                {"task": {"steps": [{"output_tokens": n, "tool_seconds": 0.0} for n in outputs]}}
                for outputs in OUTPUTS
            ],
            "limits": {"max_steps": 16, "max_tokens": 1000},
        }
    )
    async with asyncio.timeout(30), open_coordinator(config, kit=kit) as coordinator:
        status, _ = await coordinator.submit(request)
        cursor, finished = None, False
        while not finished:
            page = await coordinator.trajectories(status.batch_id, after=cursor, limit=100, wait_s=10.0)
            cursor, finished = page.cursor, page.finished
    return logged_events(folder)


def logged_events(folder: Path) -> Sequence[Event]:
    """Of the only event log there."""
    (log,) = folder.glob("**/*.jsonl")
    return [entry.event for entry in read_event_log(log).entries]


def workload_of(events: Iterable[Event]) -> Workload:
    """The same batch, with prompts and observations as the live run counted them."""
    specs = _specs(events)
    observed: dict[str, list[int]] = {spec.trajectory_id: [] for spec in specs}
    for event in events:
        if isinstance(event, ToolsFinished):
            observed[event.trajectory_id].append(event.appended_tokens)
    return Workload(
        "live",
        tuple(
            WorkTrajectory(
                spec.trajectory_id,
                spec.group_id,
                tuple(
                    WorkStep(
                        prompt_tokens=observed[spec.trajectory_id][i - 1] if i else spec.prompt_tokens,
                        output_tokens=tokens,
                        tool_names=("wait",) if i < len(outputs) - 1 else (),
                    )
                    for i, tokens in enumerate(outputs)
                ),
            )
            for spec, outputs in zip(specs, OUTPUTS, strict=True)
        ),
    )


def _specs(events: Iterable[Event]) -> tuple[TrajectorySpec, ...]:
    return next(event.trajectories for event in events if isinstance(event, BatchSubmitted))


def told(events: Iterable[Event], trajectory_id: str) -> list[object]:
    """What was said of one trajectory, without what depends on the engine or on time."""
    said: list[object] = []
    for event in events:
        match event:
            case StepGenerated() if event.trajectory_id == trajectory_id:
                said.append(("generated", event.step_index, event.prompt_tokens, event.output_tokens))
            case ToolsStarted() | ToolsFinished() | TrajectoryEnding() | TrajectoryFinished():
                if event.trajectory_id == trajectory_id:
                    said.append(event)
    return said


async def test_a_simulation_tells_what_a_live_run_tells(tmp_path: Path) -> None:
    live = await live_events(tmp_path)
    lines: list[bytes] = []
    settings = plane_settings(parse_config({"engine": {"pool": "1+1", "slots": 2}}))
    simulate(
        workload_of(live),
        settings,
        make_hardware(gpus=2),
        seed=0,
        configuration="test",
        options=SimulationOptions(check_every=1, log=lines.append),
    )
    simulated = [decode_entry(line).event for line in lines[1:]]

    assert Counter(type(event) for event in simulated) == Counter(type(event) for event in live)
    for one, other in zip(_specs(live), _specs(simulated), strict=True):
        assert (one.prompt_tokens, one.context_tokens) == (other.prompt_tokens, other.context_tokens)
        assert one.max_tokens_per_step == other.max_tokens_per_step
        assert one.known_total_tokens == other.known_total_tokens
        assert told(live, one.trajectory_id) == told(simulated, other.trajectory_id)
