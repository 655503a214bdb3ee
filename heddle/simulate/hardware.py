"""What the simulated machines are: GPUs, step times from a profile, memory, links, and how engines batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from heddle.errors import ConfigError
from heddle.planning.profile import DegreeProfile
from heddle.planning.profile_csv import Measurement, ProfileTable
from heddle.simulate.curves import StepCurves

KV_BYTES_PER_TOKEN: Mapping[str, int] = {
    "Qwen3-8B": 2 * 36 * 8 * 128 * 2,
    "Qwen3-14B": 2 * 40 * 8 * 128 * 2,
    "Qwen3-32B": 2 * 64 * 8 * 128 * 2,
}
"""Keys and values x layers x KV heads x head dimension x bytes (bf16), by the models' own configurations."""

DEFAULT_KV_BYTES = 160_000


class PrefillMode(StrEnum):
    """What happens to running generations while a prompt is computed."""

    MIXED = "mixed"
    """Each chunk carries one token of every running generation: llama.cpp, SGLang's mixed chunks."""
    EXCLUSIVE = "exclusive"
    """They stand still until no prompt is left to compute: SGLang's default."""


@dataclass(frozen=True, slots=True)
class EngineRules:
    """How every engine of the pool batches. Raises ``ConfigError`` for what no engine can do."""

    prefill: PrefillMode = PrefillMode.EXCLUSIVE
    chunk_tokens: int = 8192
    """Prompt tokens that one iteration computes at most."""
    prefill_request_s: float = 0.0
    """Cost of a request's prefill besides its tokens."""
    request_s: float = 0.0
    """From the grant until the engine knows of the request; part of its prefill time."""
    abort_s: float = 0.02
    """From the order to interrupt until the engine looks for it between two of its iterations."""
    share_prompts: bool = True
    """Whether the members of a group find each other's prompt in the cache."""
    share_running: bool = True
    """Whether also where all members that have it are running: a tree of prefixes can, slots cannot."""

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise ConfigError(f"a prefill chunk must hold at least 1 token, got {self.chunk_tokens}")
        if min(self.prefill_request_s, self.request_s, self.abort_s) < 0:
            raise ConfigError("times of an engine must not be negative")


@dataclass(frozen=True, slots=True)
class TransferLink:
    """How prefixes travel between workers. Each worker takes part in one transfer at a time."""

    bytes_per_s: float = 25e9
    """A 200 Gb/s network card for each worker."""
    latency_s: float = 0.01
    kv_bytes_per_token: int = DEFAULT_KV_BYTES

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.latency_s < 0 or self.kv_bytes_per_token < 1:
            raise ConfigError(
                "a link needs a positive bandwidth, a latency of 0 or more and tokens of some size"
            )

    @property
    def tokens_per_s(self) -> float:
        """Of a long transfer; what the control plane's settings want to know."""
        return self.bytes_per_s / self.kv_bytes_per_token

    def seconds(self, tokens: int) -> float:
        """Of one transfer that has both ends for itself."""
        return self.latency_s + tokens * self.kv_bytes_per_token / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Workers of one degree. Raises ``ConfigError`` for numbers that no worker can have."""

    tp_degree: int
    contexts: tuple[float, ...]
    """Mean contexts that step times are known for, ascending."""
    profiles: tuple[DegreeProfile, ...]
    """Step times by batch at each of ``contexts``."""
    prefill_tokens_per_s: float
    slots: int | None = None
    """Generations that run at once at most; ``None``: no cap of the profile's."""
    kv_capacity_tokens: int | None = None
    """What running generations may hold; ``None``: no cap."""
    prefix_capacity_tokens: int | None = None
    """What it keeps of all trajectories, host memory included; ``None``: the KV capacity."""

    def __post_init__(self) -> None:
        if not self.contexts or list(self.contexts) != sorted(set(self.contexts)) or self.contexts[0] < 0:
            raise ConfigError(f"degree {self.tp_degree}: contexts must ascend from 0 or more")
        if len(self.contexts) != len(self.profiles):
            raise ConfigError(f"degree {self.tp_degree}: each context needs its step times")
        if self.prefill_tokens_per_s <= 0:
            raise ConfigError(f"degree {self.tp_degree}: the prefill rate must be positive")

    def curves(self, slots: int) -> StepCurves:
        """Step times of batches up to ``slots``."""
        return StepCurves(self.contexts, self.profiles, slots)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machines of one simulation. Raises ``ConfigError`` for a budget or degrees that cannot be."""

    gpus: int
    """The budget that the allocator divides."""
    engines: tuple[EngineTimes, ...]
    """One for each degree that a worker can have, ascending."""
    slots_per_gpu: int | None = None
    """Times the degree is a worker's slots; ``None``: as the control plane's settings say."""
    rules: EngineRules = field(default_factory=EngineRules)
    link: TransferLink = field(default_factory=TransferLink)
    start_s: float = 0.0
    """From having its GPUs until a worker is ready that is started later than the first pool."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ConfigError(f"the budget must be at least 1 GPU, got {self.gpus}")
        degrees = [engine.tp_degree for engine in self.engines]
        if not degrees or degrees != sorted(set(degrees)):
            raise ConfigError(f"degrees must ascend, each once, and at least one is needed; got {degrees}")
        if self.slots_per_gpu is not None and self.slots_per_gpu < 1:
            raise ConfigError(f"slots_per_gpu must be at least 1, got {self.slots_per_gpu}")

    def engine(self, tp_degree: int) -> EngineTimes:
        """The times of a degree. Raises ``ConfigError`` that lists the degrees there are."""
        for engine in self.engines:
            if engine.tp_degree == tp_degree:
                return engine
        known = ", ".join(str(engine.tp_degree) for engine in self.engines)
        raise ConfigError(f"there are no step times of degree {tp_degree}; known are {known}")

    def part(self, parts: int) -> Hardware:
        """The same machines, one of so many equal parts of them."""
        return replace(self, gpus=self.gpus // parts)

    def slots(self, tp_degree: int, configured: int) -> int:
        """Of a worker: ``configured`` unless ``slots_per_gpu`` says otherwise, within the profile's cap."""
        slots = configured if self.slots_per_gpu is None else self.slots_per_gpu * tp_degree
        cap = self.engine(tp_degree).slots
        return slots if cap is None else min(slots, cap)


def hardware_from_profile(
    table: ProfileTable,
    gpus: int,
    *,
    gpu: str | None = None,
    model: str | None = None,
    slots_per_gpu: int | None = None,
    rules: EngineRules | None = None,
    link: TransferLink | None = None,
    start_s: float = 0.0,
) -> Hardware:
    """Machines whose engines run as a profile says, at all of its context lengths.

    ``gpu`` and ``model`` may be left out where the table holds one of each. A model that
    ``KV_BYTES_PER_TOKEN`` knows brings its own size of a token, unless ``link`` is given. Raises
    ``ConfigError`` for what the table does not hold, a prefill rate included.
    """
    chosen = table.select(gpu, model)
    rows = [row for row in table.rows if (row.gpu, row.model) == (chosen.gpu, chosen.model)]
    engines = tuple(
        _engine_times(table, [row for row in rows if row.tp_degree == degree.tp_degree], degree)
        for degree in chosen.degrees
    )
    known_bytes = KV_BYTES_PER_TOKEN.get(chosen.model, DEFAULT_KV_BYTES)
    return Hardware(
        gpus=gpus,
        engines=engines,
        slots_per_gpu=slots_per_gpu,
        rules=rules or EngineRules(),
        link=link or TransferLink(kv_bytes_per_token=known_bytes),
        start_s=start_s,
    )


def _engine_times(table: ProfileTable, rows: Sequence[Measurement], degree: DegreeProfile) -> EngineTimes:
    if degree.prefill_tokens_per_s is None:
        raise ConfigError(f"{table.source}, tp {degree.tp_degree}: a simulation needs prefill_tokens_per_s")
    contexts = sorted({row.context_tokens for row in rows})
    profiles = []
    for context in contexts:
        points = [(row.batch, row.step_seconds) for row in rows if row.context_tokens == context]
        profiles.append(DegreeProfile.measured(degree.tp_degree, points))
    return EngineTimes(
        tp_degree=degree.tp_degree,
        contexts=tuple(contexts),
        profiles=tuple(profiles),
        prefill_tokens_per_s=degree.prefill_tokens_per_s,
        slots=degree.slots,
        kv_capacity_tokens=degree.kv_capacity_tokens,
    )
