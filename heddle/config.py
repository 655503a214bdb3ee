"""Every setting of Heddle, in one typed file. Read from TOML; the CLI overrides single keys.

Pydantic only here, at the edge: what comes out is frozen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from heddle.errors import ConfigError
from heddle.validation import faults, field_names

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Text is never empty, or it would mean the folder at hand; a truth value is no number."""
        if value == "":
            raise ValueError("should not be empty")
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("should not be true or false")
        return value


class ServerConfig(_Section):
    """The REST surface."""

    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    """0 takes a free port, printed at start."""
    token: SecretStr | None = None
    """Bearer token; required where ``host`` is not loopback."""
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)

    @model_validator(mode="after")
    def _token_off_loopback(self) -> ServerConfig:
        if self.host not in LOOPBACK_HOSTS and self.token is None:
            raise ValueError(f"server.token is required when server.host is {self.host!r} (not loopback)")
        return self


class SGLangGroupConfig(_Section):
    """What the workers of one parallel degree get beyond the others."""

    extra_args: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


class PrefixStoreConfig(_Section):
    """Where servers share the prefixes that they computed."""

    kind: Literal["none", "heddle", "mooncake"] = "none"
    """``heddle``: the memory of this machine, for servers of all degrees; ``mooncake``: a store that runs."""
    directory: Path | None = None
    """Of ``heddle``: in a memory file system. ``None`` takes one that is named after ``data_dir``."""
    budget_gib: float | None = Field(default=None, gt=0.0)
    """Of ``heddle``: memory for all pages; ``None`` takes half of what the file system has free."""
    page_tokens: int = Field(default=64, ge=1)
    """Only whole pages are shared."""
    host_gb: int | None = Field(default=None, ge=1)
    """Host memory of each rank in front of the store; ``None`` takes twice its KV cache."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Of the model, where its directory is not at hand; 1 under multi-head latent attention."""
    largest_tp: int = Field(default=8, ge=1)
    """Highest degree that a worker will ever have; all servers on one store need the same."""
    master: str | None = None
    """Of ``mooncake``: host and port of its master."""


class SGLangConfig(_Section):
    """SGLang servers: how they are started, or where they run."""

    workers: tuple[str, ...] = ()
    """URLs of servers that run already. They make up the pool; none is started and none stopped."""
    api_key: SecretStr | None = None
    """Of the servers at ``workers``."""
    device: Literal["cuda", "cpu"] = "cuda"
    """What a unit of a worker's degree is: a GPU, or a core."""
    gpus: str = "auto"
    """Indices such as ``0-3,6``; ``auto`` takes all that this process may see."""
    command: tuple[str, ...] = Field(default=("python", "-m", "sglang.launch_server"), min_length=1)
    """Starts a server; arguments follow. ``sglang serve --model-type llm`` is another."""
    default_args: tuple[str, ...] | None = None
    """In place of those that Heddle gives every server unless it is told otherwise."""
    extra_args: tuple[str, ...] = ()
    """Handed to every server as they are."""
    environment: dict[str, str] = Field(default_factory=dict)
    groups: dict[int, SGLangGroupConfig] = Field(default_factory=dict)
    """By parallel degree, beyond ``extra_args`` and ``environment``."""
    native_share: float | None = Field(default=None, gt=0.0, le=1.0)
    """Of a worker's slots, those that its server runs at once; the rest wait in the server, which orders and
    preempts them by priority. ``None``: all run, and the coordinator preempts."""
    base_port: int = Field(default=30000, ge=1024, le=65000)
    """The first worker's; each takes 16 ports."""
    start_at_once: int = Field(default=2, ge=1)
    free_share: float = Field(default=0.9, gt=0.0, le=1.0)
    """Of a GPU's memory, to be free before a server is started there."""
    prefix_store: PrefixStoreConfig = PrefixStoreConfig()


class EngineConfig(_Section):
    """Which engine, which model, and the pool of workers."""

    kind: Literal["embedded", "sglang", "fake"] = "embedded"
    model: str = "smollm2-135m-instruct"
    """A model name that Heddle can bring, or the path of a GGUF file; of SGLang the directory of a Hugging
    Face model, or a name that SGLang can bring."""
    tokenizer: Path | None = None
    """A directory with ``tokenizer.json``, where it is not the model's."""
    pool: str = "auto"
    """Parallel degrees of the workers joined by ``+`` (``1+1``, ``2``), or one and ``*`` for as many as fit
    (``8*``); ``auto`` is ``1*``."""
    slots: int = Field(default=4, ge=1, le=4096)
    """Generations that run at once on one worker."""
    slots_per_gpu: int | None = Field(default=None, ge=1, le=4096)
    """In their place so many for each unit of a worker's degree."""
    context_tokens: int = Field(default=2048, ge=64)
    """Prompt plus response of one trajectory."""
    ready_timeout_s: float | None = Field(default=None, gt=0)
    """Longest start of a worker; 120 s, and 900 s of an SGLang server."""
    step_deadline_s: float = Field(default=600.0, gt=0)
    token_deadline_s: float = Field(default=300.0, gt=0)
    """Longest wait for a first token, and between two."""
    max_restarts: int = Field(default=10, ge=0)
    """In a row, without an hour of health between them; then the worker is given up."""
    max_interruptions: int = Field(default=8, ge=1)
    """Engine failures that one step survives before its trajectory ends ``engine_failed``."""
    sglang: SGLangConfig = SGLangConfig()

    @property
    def ready_within_s(self) -> float:
        """``ready_timeout_s``, or what its engine usually needs."""
        return self.ready_timeout_s or (900.0 if self.kind == "sglang" else 120.0)


class ToolsConfig(_Section):
    """The Tool Manager and its sandbox."""

    concurrency: int = Field(default=4, ge=1)
    """Tool calls that run at once; the rest queue."""
    timeout_s: float = Field(default=10.0, gt=0)
    cpu_s: float = Field(default=5.0, gt=0)
    memory_bytes: int = Field(default=512 * 1024 * 1024, ge=16 * 1024 * 1024)
    output_bytes: int = Field(default=16 * 1024, ge=256)
    file_bytes: int = Field(default=8 * 1024 * 1024, ge=0)
    max_processes: int = Field(default=32, ge=1)
    max_retries: int = Field(default=2, ge=0, le=100)
    """Of a call whose backend failed, where calls of it may be repeated; then its trajectory ends."""
    isolation: Literal["auto", "bubblewrap", "namespaces", "rlimits"] = "auto"
    """``auto`` takes the strongest present; naming one that is absent is an error."""


class RolloutsConfig(_Section):
    """Bounds that hold for every batch."""

    batch_timeout_s: float | None = Field(default=None, gt=0)
    """Wall clock of a batch that brings none of its own; what is open then ends ``timed_out``."""
    max_version_span: int | None = Field(default=None, ge=0)
    """Between the oldest and the newest weights that sampled tokens of one trajectory; more is refused."""


class DecisionsConfig(_Section):
    """Which implementation makes each of the control plane's decisions."""

    scheduler: str = "fcfs"
    placer: str = "sticky_least_loaded"
    allocator: str = "fixed"
    migration: str = "none"
    predictor: str = "mean_by_step"
    predictor_models: Path | None = None
    """What ``heddle predictor train`` wrote: models that estimate lengths from text, served beside the
    coordinator for ``progressive``."""
    predictor_error: float = Field(default=0.5, ge=0.0, le=5.0)
    """Of ``noisy_oracle``: standard deviation of the logarithm of its factor."""
    preemption: bool = True
    """Whether a scheduler that wants to may interrupt a running generation for a waiting one."""
    preempt_margin_tokens: float = Field(default=32.0, ge=0.0)
    """Lead in expected tokens that it needs."""
    max_preemptions_per_step: int = Field(default=2, ge=0)
    ageing_per_s: float = Field(default=0.0, ge=0.0)
    """Added to a rank for each second of waiting, in the scheduler's units. For endless streams; 0 for
    batches, of which only the last trajectory's end counts."""
    kv_guard: bool = True
    """Hold trajectories back after their tools while an engine's cache could not keep all prefixes."""
    profile: Path | None = None
    """Step times of the workers (CSV, as ``heddle profile`` writes it), for what plans by length."""
    profile_gpu: str | None = None
    """Kind of GPU, where the profile holds several; without a profile, one of the shipped table."""
    profile_model: str | None = None
    """Model, where the profile holds several; without a profile, one of the shipped table."""
    rehearse: Path | None = None
    """Recorded trajectories to choose the workers by, in a rehearsal before they are started: records, a
    trace, or a data directory, of which the batch that finished last; ``data_dir`` itself is allowed."""
    rehearse_within_s: float = Field(default=600.0, gt=0.0)
    """Longest rehearsal; where it takes longer the configured workers are started."""
    transfer_tokens_per_s: float | None = Field(default=None, gt=0.0)
    """How fast engines hand a context to one another, until transfers have shown it; ``None``: as the engine
    is known for."""
    transfer_deadline_s: float = Field(default=30.0, gt=0.0)
    """After which moving a trajectory's context to another worker has failed."""
    reshaper: str = "none"
    """Whether idle workers give way to larger ones while the last trajectories of a batch run: ``tail``."""
    worker_start_s: float = Field(default=60.0, gt=0.0)
    """That starting a worker is expected to take, until a reshape has measured it."""
    seed: int = 0


class HeddleConfig(_Section):
    """The whole configuration."""

    data_dir: Path = Path("heddle-data")
    """Store, event logs and worker logs."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    tools: ToolsConfig = ToolsConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    decisions: DecisionsConfig = DecisionsConfig()
    environments: dict[str, str] = Field(default_factory=dict)
    """Extra environments, name to ``module:Class``; installed entry points are found by themselves."""
    presets: dict[str, dict[str, str | float | bool]] = Field(default_factory=dict)
    """Named choices of the decisions for ``--preset``; see ``heddle presets``."""


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> HeddleConfig:
    """Read a TOML file (without one, the defaults) and set ``overrides``, keyed ``section.key``.

    The whole is validated once, after the overrides. Raises ``ConfigError`` that names the key.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise ConfigError(f"cannot read configuration {path}: {exc}") from exc
    for dotted, value in (overrides or {}).items():
        *sections, key = dotted.split(".")
        table = values
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"bad configuration: {section}: must be a table to set {dotted}")
        table[key] = value
    return parse_config(values)


def parse_config(values: dict[str, object]) -> HeddleConfig:
    """Validate a nested mapping. Raises ``ConfigError`` that names every wrong key."""
    try:
        return HeddleConfig.model_validate(values)
    except ValidationError as exc:
        wrong = map(str, faults(exc, field_names(HeddleConfig)))
        raise ConfigError("bad configuration: " + "; ".join(wrong)) from exc
