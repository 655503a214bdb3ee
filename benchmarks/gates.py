"""Admission gates on clean work, on lies and on wounds: how many false alarms, how many get through.

    python benchmarks/gates.py [--clean 10000] [--lies 200] [--json]

A whole coordinator on fake engines rolls out trajectories of one to four steps with tools, some of them under
preemption, some on engines that crash in the middle. First on honest engines: whatever is in quarantine is a
false alarm. Then on engines that lie in one way each: whatever is *not* in quarantine has got through.

An engine cannot break what the agent loop builds by itself (identities, lengths, mask, prefix, stop reason).
For these each of the clean records gets one wound after the other, at a place drawn at random: whatever its
gate does not find has got through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from heddle.agent.ports import Episode, Generation, GenerationRequest, Reward, TokenChunk, ToolInvoker
from heddle.api.schemas import BatchRequest
from heddle.app import open_coordinator
from heddle.config import parse_config
from heddle.coordinator.assembly import EngineKit
from heddle.coordinator.service import Coordinator
from heddle.engines.fake import FakeEngine, FakeFaults, FakeModel, FakeWorker
from heddle.environments.base import ToolAnswer, ToolContext, ToolEnvironment
from heddle.records import Failure, FailureKind, Trajectory, decode_trajectory
from heddle.store.gates import Gate, check
from heddle.text.byte_tokenizer import TURN_END, TURN_START, ByteTokenizer
from heddle.types import (
    Json,
    Message,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolSpec,
    TrajectoryStatus,
    WorkerSpec,
)

Lie = Callable[[Generation], Generation]
Wound = Callable[[Trajectory, random.Random], Trajectory]

MAX_VERSION_SPAN = 2
"""As the coordinator is configured."""


class WordsEnvironment(ToolEnvironment):
    """Every step but the last asks for a word."""

    def __init__(self) -> None:
        text: dict[str, Json] = {"type": "string"}
        parameters: dict[str, Json] = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        super().__init__("words", (ToolSpec("say", "Says it again.", parameters),))

    def opening(self, task: Mapping[str, Json]) -> tuple[Message, ...]:
        return (Message("user", f"Task {task['number']}."),)

    async def run_tool(self, call: ToolCall, context: ToolContext) -> ToolAnswer:
        return ToolAnswer(str(call.arguments["text"]))

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward:
        return Reward(float(episode.steps))


def _speak(request: GenerationRequest) -> Sequence[int]:
    """One to four steps, by the prompt; goes on where a request has the beginning of a turn already."""
    ids = list(request.prompt_ids)
    turns = [at for at, token in enumerate(ids) if token == TURN_START]
    fate = zlib.crc32(bytes(token % 256 for token in ids[: turns[2]]))
    step = (len(turns) - 3) // 2
    said = "The end. " * 12
    if step < fate % 4:
        said = f'<tool_call>\n{{"name": "say", "arguments": {{"text": "{fate + step} words"}}}}\n</tool_call>'
    begun = len(ids) - turns[-1] - 1 - len(b"assistant\n")
    return [*said.encode(), TURN_END][begun:]


class LyingEngine(FakeEngine):
    """Sound in all but one thing that it says."""

    lie: Lie | None = None

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        if self.lie is None:
            return await super().generate(request, on_tokens)
        told = self.lie(await super().generate(request, lambda chunk: None))
        on_tokens(TokenChunk(told.token_ids, told.logprobs))
        return told


@dataclass(slots=True)
class Launcher:
    """Engines that tell this lie; the first one crashes in the middle of its work where there is none."""

    lie: Lie | None
    launched: int = 0

    async def launch(self, spec: WorkerSpec, log_path: Path) -> FakeWorker:
        crashing = (
            FakeFaults(crash_after_tokens=60) if self.lie is None and self.launched == 0 else FakeFaults()
        )
        self.launched += 1
        model = FakeModel(_speak, end_of_turn_id=TURN_END)
        engine = LyingEngine(slots=spec.slots, model=model, faults=crashing)
        engine.lie = self.lie
        return FakeWorker(engine)


LIES: dict[str, Lie] = {
    "logprobs missing": lambda told: replace(told, logprobs=[0.0] * len(told.logprobs)),
    "one logprob not a number": lambda told: replace(told, logprobs=[*told.logprobs[:-1], math.nan]),
    "one logprob infinite": lambda told: replace(told, logprobs=[-math.inf, *told.logprobs[1:]]),
    "one logprob positive": lambda told: replace(told, logprobs=[*told.logprobs[:-1], 0.4]),
    "other temperature": lambda told: replace(told, echoed_sampling=SamplingParams(temperature=0.6)),
    "other top_p": lambda told: replace(told, echoed_sampling=SamplingParams(top_p=0.95)),
    "other top_k": lambda told: replace(told, echoed_sampling=SamplingParams(top_k=40)),
    "other min_p": lambda told: replace(told, echoed_sampling=SamplingParams(min_p=0.05)),
    "weights far apart": lambda told: replace(
        told, weight_versions=[7 + (n > 0) * (MAX_VERSION_SPAN + 1) for n in range(len(told.token_ids))]
    ),
    "weights going back": lambda told: replace(
        told, weight_versions=[8 - (n > 0) for n in range(len(told.token_ids))]
    ),
    "negative weight version": lambda told: replace(told, weight_version=-1),
}


@dataclass(frozen=True, slots=True)
class Harm:
    """One thing that no record may have, and whose finding it is."""

    gate: Gate
    wound: Wound


def _at(values: Sequence[int], value: int, rng: random.Random) -> list[int]:
    """The values, one of which is another."""
    place = rng.randrange(len(values))
    return [*values[:place], value, *values[place + 1 :]]


def _step(record: Trajectory, rng: random.Random, **changes: int) -> Trajectory:
    """One of its steps is changed by so much."""
    place = rng.randrange(len(record.steps))
    step = record.steps[place]
    step = replace(
        step,
        prompt_tokens=step.prompt_tokens + changes.get("prompt_tokens", 0),
        step_index=step.step_index + changes.get("step_index", 0),
    )
    return replace(record, steps=[*record.steps[:place], step, *record.steps[place + 1 :]])


_FAILURE = Failure(FailureKind.INFRA, "generate", "the engine died")

WOUNDS: dict[str, Harm] = {
    "no group": Harm(Gate.IDS, lambda r, _: replace(r, group_id="")),
    "no prompt": Harm(Gate.IDS, lambda r, _: replace(r, prompt_ids=[])),
    "a negative id": Harm(Gate.IDS, lambda r, rng: replace(r, response_ids=_at(r.response_ids, -1, rng))),
    "a token lost": Harm(Gate.LENGTHS, lambda r, _: replace(r, response_ids=r.response_ids[:-1])),
    "a logprob lost": Harm(Gate.LENGTHS, lambda r, _: replace(r, response_logprobs=r.response_logprobs[1:])),
    "a 2 in the mask": Harm(Gate.MASK, lambda r, rng: replace(r, response_mask=_at(r.response_mask, 2, rng))),
    "the mask inverted": Harm(
        Gate.MASK, lambda r, _: replace(r, response_mask=[1 - value for value in r.response_mask])
    ),
    "a prompt seen too short": Harm(Gate.PREFIX, lambda r, rng: _step(r, rng, prompt_tokens=-1)),
    "a prompt seen too long": Harm(Gate.PREFIX, lambda r, rng: _step(r, rng, prompt_tokens=1)),
    "a prompt that lost its head": Harm(Gate.PREFIX, lambda r, _: replace(r, prompt_ids=r.prompt_ids[1:])),
    "a step twice": Harm(Gate.STEPS, lambda r, _: replace(r, steps=[*r.steps, r.steps[-1]])),
    "a step index off": Harm(Gate.STEPS, lambda r, rng: _step(r, rng, step_index=1)),
    "another stop reason": Harm(Gate.STOP_REASON, lambda r, _: replace(r, stop_reason=StopReason.MAX_TOKENS)),
    "another status": Harm(Gate.STOP_REASON, lambda r, _: replace(r, status=TrajectoryStatus.ABORTED)),
    "a failure that is none": Harm(Gate.FAILURE, lambda r, _: replace(r, failure=_FAILURE)),
    "seconds from nowhere": Harm(
        Gate.TIMING,
        lambda r, _: replace(r, timing=replace(r.timing, queue=r.timing.queue + 0.1 + 0.05 * r.timing.wall)),
    ),
    "no number as reward": Harm(Gate.REWARD, lambda r, _: replace(r, reward=math.nan)),
}


def through(harm: Harm, records: Sequence[Trajectory], rng: random.Random) -> int:
    """How many wounded records their gate lets through."""
    found = (check(harm.wound(record, rng), MAX_VERSION_SPAN) for record in records)
    return sum(all(violation.gate is not harm.gate for violation in violations) for violations in found)


async def roll_out(
    lie: Lie | None, trajectories: int, data_dir: Path
) -> tuple[list[Trajectory], Mapping[str, int]]:
    """The records, and the quarantine's counts."""
    config = parse_config(
        {
            "data_dir": data_dir,
            "log_level": "error",
            "engine": {"kind": "fake", "pool": "1+1", "slots": 16, "context_tokens": 1 << 16},
            "decisions": {"scheduler": "shortest_first"},
            "rollouts": {"max_version_span": MAX_VERSION_SPAN},
            "environments": {"words": "__main__:WordsEnvironment"},
        }
    )
    batch = BatchRequest.model_validate(
        {
            "batch_id": "g",
            "environment": "words",
            "prompts": [{"task": {"number": number}} for number in range(trajectories)],
        }
    )
    kit = EngineKit(Launcher(lie), ByteTokenizer(), FakeEngine.capabilities, "words")
    async with open_coordinator(config, kit=kit) as coordinator:
        await coordinator.submit(batch)
        ended = await _ended(coordinator)
        page = await coordinator.quarantine(after=None, limit=1000)
    return ended, page.counts


async def _ended(coordinator: Coordinator) -> list[Trajectory]:
    cursor: str | None = None
    ended: list[Trajectory] = []
    while True:
        page = await coordinator.trajectories("g", after=cursor, limit=1000, wait_s=30.0)
        ended += map(decode_trajectory, page.records)
        cursor = page.cursor
        if page.finished:
            return ended


def main() -> None:
    """Measure and print. The exit code is 1 after a false alarm, or where a lie got through."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", type=int, default=10_000)
    parser.add_argument("--lies", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="heddle-gates-") as base:
        began = time.monotonic()
        clean, counts = asyncio.run(roll_out(None, options.clean, Path(base, "clean")))
        seconds = time.monotonic() - began
        found |= {"clean": len(clean), "false_alarms": sum(counts.values()), "seconds": seconds}
        rng = random.Random(0)
        for name, harm in WOUNDS.items():
            found[f"through: {name}"] = through(harm, clean, rng)
        for name, lie in LIES.items():
            ended, counts = asyncio.run(roll_out(lie, options.lies, Path(base, name)))
            found[f"through: {name}"] = len(ended) - max(counts.values(), default=0)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:36} {figure:12.1f}" for name, figure in found.items()))
    bad = found["false_alarms"] + sum(n for name, n in found.items() if name.startswith("through"))
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
