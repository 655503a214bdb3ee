"""Requests as they come over the wire: validated here, at the edge, and nowhere else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from heddle.types import Limits, SamplingParams

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Ids travel in URLs, file names and logs: letters, digits, dot, dash and underscore only."""

Identifier = Annotated[str, StringConstraints(pattern=ID_PATTERN)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class PromptRequest(_Strict):
    """One prompt: a task for an environment."""

    prompt_id: Identifier | None = None
    """Defaults to ``p{index}``."""
    environment: str | None = None
    """Defaults to the batch's."""
    task: dict[str, JsonValue]
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Returned untouched with every trajectory of this prompt."""


class SamplingRequest(_Strict):
    """How tokens are drawn."""

    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**31)

    def to_params(self) -> SamplingParams:
        return SamplingParams(**self.model_dump())


class LimitsRequest(_Strict):
    """What ends a trajectory from within."""

    max_steps: int = Field(default=8, ge=1, le=10_000)
    max_tokens: int = Field(default=2048, ge=1, le=10_000_000)
    max_tokens_per_step: int = Field(default=256, ge=1, le=1_000_000)
    max_tool_calls: int = Field(default=64, ge=1, le=100_000)
    max_invalid_tool_calls: int = Field(default=3, ge=1, le=1_000)
    timeout_s: float = Field(default=1800.0, gt=0.0, le=7 * 86_400.0)

    def to_limits(self) -> Limits:
        return Limits(**self.model_dump())


class ToolUseRequest(_Strict):
    """How the model calls tools."""

    parser: Literal["hermes", "openai", "fenced"] = "hermes"
    constrained: bool = False
    """Force every step to be one well-formed tool call, where the engine can; steps say so."""


class PriorityRequest(_Strict):
    """What a batch may claim against others that wait at the same workers."""

    weight: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Share of the grants, relative to the other batches."""
    deadline_s: float | None = Field(default=None, gt=0.0, le=30 * 86_400.0)
    """Seconds from the submission; as it comes nearer the batch gets more than its share. A wish, not a
    limit: nothing is ended by it, as it is by ``batch_timeout_s``."""


class BatchRequest(_Strict):
    """``POST /v1/batches``."""

    batch_id: Identifier | None = None
    """Makes the call idempotent: a second batch of the same id is the first."""
    environment: str | None = None
    prompts: list[PromptRequest] = Field(min_length=1, max_length=100_000)
    samples_per_prompt: int = Field(default=1, ge=1, le=4096)
    sampling: SamplingRequest = SamplingRequest()
    limits: LimitsRequest = LimitsRequest()
    tools: ToolUseRequest = ToolUseRequest()
    priority: PriorityRequest = PriorityRequest()
    batch_timeout_s: float | None = Field(default=None, gt=0.0, le=30 * 86_400.0)
    """Seconds from the submission, restarts included, after which nothing of the batch runs any more: what is
    open ends ``timed_out``. Without it the server's ``rollouts.batch_timeout_s``."""


class WorkerRequest(_Strict):
    """``POST /v1/workers``."""

    tp_degree: int = Field(ge=1, le=1024)
    slots: int | None = Field(default=None, ge=1, le=4096)


class PoolRequest(_Strict):
    """``PUT /v1/pool``: the workers that there should be."""

    pool: str = Field(min_length=1, max_length=4096)
    """Parallel degrees joined by ``+``, such as ``4+2+1+1``; ``2*`` is as many of 2 as fit."""


class WeightCallRequest(_Strict):
    """One call of a trainer that every engine gets, in SGLang's words."""

    endpoint: Literal[
        "init_weights_update_group",
        "update_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "destroy_weights_update_group",
    ]
    body: dict[str, JsonValue] = Field(default_factory=dict)
    per_worker: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """What differs, by worker id: set over ``body`` (``rank_offset``, tensors for another degree)."""


class WeightsRequest(_Strict):
    """``POST /v1/weights``: new weights for all workers, or for none."""

    version: int = Field(ge=1, lt=2**31)
    """Larger than the present one. The same version with the same content again changes nothing."""
    path: str | None = Field(default=None, min_length=1)
    """A directory that every engine can read."""
    calls: list[WeightCallRequest] = Field(default_factory=list, max_length=100_000)
    """In its place: calls that hand weights over, each made to all workers at once, one after the other."""
    pause: Literal["retract", "abort", "in_place"] = "retract"
    """What becomes of running generations: they wait and compute their prefixes anew, they go back to the
    queue with what they have, or they wait and go on with prefixes of the old weights."""

    @model_validator(mode="after")
    def _one_source(self) -> WeightsRequest:
        if (self.path is None) is not bool(self.calls):
            raise ValueError("either path or calls is required, and not both")
        return self
