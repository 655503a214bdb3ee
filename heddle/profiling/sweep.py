"""Sweeps degrees and batches: which worker runs when, how often, and what is kept.

Only one worker is alive at a time, so that no two compete for cores. Noise of the machine changes over
minutes; therefore every point is measured once in each of several rounds, in turn upwards and downwards.
What else runs only ever makes a step longer, so the least of all samples counts. Within a round a
worker computes its prompts one by one (which gives the prefill rate, as nothing of them is cached) and then
runs all batches on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from heddle.agent.ports import Tokenizer
from heddle.engines.supervisor import EngineLauncher, RunningWorker
from heddle.engines.uninterrupted import uninterrupted
from heddle.errors import ConfigError
from heddle.profiling.measured import MeasuredDegree, MeasuredPoint
from heddle.profiling.steps import MAX_ATTEMPTS, BatchTimer, PromptMaker, ended_early
from heddle.types import WorkerId, WorkerSpec

STEPS = 32
"""Timed steps of a batch in each round."""
WARM_UP_TOKENS = 32
"""Computed on a fresh worker before anything is timed."""

Progress = Callable[[str], None]
"""Hears what is measured next, in a few words."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to measure. Raises ``ConfigError`` for what cannot be."""

    degrees: tuple[int, ...]
    batches: tuple[int, ...]
    """Ascending, the first one 1, none above ``slots``."""
    slots: int
    context_tokens: int
    """Mean context of a generation while it is timed."""
    rounds: int
    room_tokens: int
    """Prompt and response that a slot of the engine has room for."""

    def __post_init__(self) -> None:
        if not self.degrees or min(self.degrees) < 1:
            raise ConfigError("at least one degree must be measured, none below 1")
        if list(self.degrees) != sorted(set(self.degrees)):
            raise ConfigError(f"degrees must ascend, each once; got {_listed(self.degrees)}")
        if self.batches[:1] != (1,) or list(self.batches) != sorted(set(self.batches)):
            raise ConfigError(f"batches must ascend from 1, each once; got {_listed(self.batches)}")
        if self.batches[-1] > self.slots:
            raise ConfigError(f"a batch of {self.batches[-1]} does not fit {self.slots} slots")
        if self.prompt_tokens < 8:
            raise ConfigError(f"the context must be at least {STEPS // 2 + 8} tokens")
        if self.prompt_tokens + 2 * STEPS > self.room_tokens:
            raise ConfigError(
                f"a mean context of {self.context_tokens} tokens needs room for "
                f"{self.prompt_tokens + 2 * STEPS} in a slot, and there is {self.room_tokens}"
            )
        if self.rounds < 1:
            raise ConfigError(f"at least one round is needed, not {self.rounds}")

    @property
    def prompt_tokens(self) -> int:
        """So many that half of the timed steps bring the context to its mean."""
        return self.context_tokens - STEPS // 2


@dataclass(slots=True)
class _Samples:
    """What has been seen of one degree so far."""

    steps: defaultdict[int, list[float]]
    prefill: list[float]
    kv_capacity_tokens: int | None = None

    @classmethod
    def none(cls) -> _Samples:
        return cls(defaultdict(list), [])


class Sweep:
    """One sweep; ``run`` it once."""

    def __init__(
        self,
        launcher: EngineLauncher,
        tokenizer: Tokenizer,
        plan: SweepPlan,
        *,
        log_dir: Path,
        progress: Progress,
        seed: int,
    ) -> None:
        self._launcher = launcher
        self._plan = plan
        self._log_dir = log_dir
        self._progress = progress
        self._prompts = PromptMaker(tokenizer, plan.prompt_tokens, seed)
        self._samples = {degree: _Samples.none() for degree in plan.degrees}

    async def run(self) -> tuple[MeasuredDegree, ...]:
        """Measure everything. Raises ``EngineError`` and ``ConfigError`` as launcher and engine do.

        Whatever way it ends, no worker is left.
        """
        for number in range(self._plan.rounds):
            upwards = number % 2 == 0
            for degree in self._plan.degrees:
                await self._visit(degree, number, upwards=upwards)
        return tuple(self._measured(degree) for degree in self._plan.degrees)

    async def _visit(self, degree: int, number: int, *, upwards: bool) -> None:
        """One degree in one round: start its worker, run all batches, stop it."""
        where = f"round {number + 1} of {self._plan.rounds}, degree {degree}"
        self._progress(f"{where}: starting the worker")
        spec = WorkerSpec(WorkerId(f"profile-{degree}"), degree, self._plan.slots)
        worker = await self._launcher.launch(spec, self._log_dir / f"{spec.worker_id}.log")
        try:
            await self._measure(worker, degree, where, upwards=upwards)
        finally:
            await uninterrupted(worker.stop())

    async def _measure(self, worker: RunningWorker, degree: int, where: str, *, upwards: bool) -> None:
        samples = self._samples[degree]
        samples.kv_capacity_tokens = worker.kv_capacity_tokens
        timer = BatchTimer(
            worker.engine, steps=STEPS, room_tokens=self._plan.room_tokens - self._plan.prompt_tokens
        )
        await timer.compute(self._prompts.prompt()[:WARM_UP_TOKENS])  # pays for cold memory
        self._progress(f"{where}: prompts")
        prompts = await self._computed(timer, samples)
        batches = self._plan.batches if upwards else self._plan.batches[::-1]
        for batch in batches:
            self._progress(f"{where}: batch {batch}")
            samples.steps[batch] += await self._timed(timer, prompts, batch, samples)

    async def _timed(
        self, timer: BatchTimer, prompts: list[list[int]], batch: int, samples: _Samples
    ) -> list[float]:
        """Samples of one batch; prompts that a model would not go on with are replaced."""
        for _ in range(MAX_ATTEMPTS):
            seen = await timer.time(prompts[:batch])
            if seen:
                return seen
            prompts[:] = await self._computed(timer, samples)
        raise ended_early(batch)

    async def _computed(self, timer: BatchTimer, samples: _Samples) -> list[list[int]]:
        """Fresh prompts for the largest batch, each computed by itself."""
        prompts = [self._prompts.prompt() for _ in range(self._plan.batches[-1])]
        for prompt in prompts:
            samples.prefill.append(await timer.compute(prompt))
        return prompts

    def _measured(self, degree: int) -> MeasuredDegree:
        samples = self._samples[degree]
        return MeasuredDegree(
            tp_degree=degree,
            slots=self._plan.slots,
            points=tuple(MeasuredPoint(batch, tuple(samples.steps[batch])) for batch in self._plan.batches),
            prefill_tokens_per_s=_upper_quartile(samples.prefill),
            kv_capacity_tokens=samples.kv_capacity_tokens,
        )


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and ``most`` itself."""
    return tuple(sorted({*(1 << bit for bit in range(most.bit_length()) if 1 << bit <= most), most}))


def _upper_quartile(rates: Sequence[float]) -> float:
    return rates[0] if len(rates) == 1 else quantiles(rates, n=4, method="inclusive")[2]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
