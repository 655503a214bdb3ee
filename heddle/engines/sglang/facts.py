"""What a server says of itself, and what follows from it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from heddle.agent.ports import EngineCapabilities
from heddle.engines.sglang.client import SGLangClient
from heddle.engines.sglang.protocol import version_number
from heddle.errors import EngineUnavailable


class _ModelInfo(BaseModel):
    weight_version: str | None = None


class InternalState(BaseModel):
    """Of one scheduler: one per data-parallel rank."""

    effective_max_running_requests_per_dp: int | None = None


class ServerFacts(BaseModel):
    """The part of ``GET /server_info`` that matters here. A field that is missing has its flag's default."""

    model_config = ConfigDict(protected_namespaces=())

    version: str | None = None
    model_path: str | None = None
    served_model_name: str | None = None
    max_req_input_len: int | None = None
    """Longest prompt; the context is a few tokens longer."""
    tp_size: int = 1
    dp_size: int = 1
    page_size: int | None = None
    max_running_requests: int | None = None
    max_total_num_tokens: int | None = None
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    disable_priority_preemption: bool = False
    enable_session_radix_cache: bool = False
    enable_hierarchical_cache: bool = False
    hicache_storage_backend: str | None = None
    speculative_algorithm: str | None = None
    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None
    enable_metrics: bool = False
    internal_states: list[InternalState] = []

    @property
    def capabilities(self) -> EngineCapabilities:
        """What follows for an engine on this server."""
        return EngineCapabilities(
            json_schema=not self.skip_tokenizer_init and self.grammar_backend not in (None, "none"),
            ignore_end=True,
            prefix_warmup=True,
            kv_transfer=self.enable_hierarchical_cache and self.hicache_storage_backend is not None,
            native_priority=self.enable_priority_scheduling and not self.disable_priority_preemption,
            online_slots=True,
            pause=True,
            weight_update=True,
            step_times=True,
            sessions=self.enable_session_radix_cache,
            shared_prefixes=True,
        )

    @property
    def slots(self) -> int | None:
        """Generations that it runs at once, over all its data-parallel ranks."""
        states = [state.effective_max_running_requests_per_dp for state in self.internal_states]
        known = [slots for slots in states if slots is not None]
        return sum(known) if known else self.max_running_requests


async def ask_facts(client: SGLangClient) -> ServerFacts:
    """Raises ``EngineUnavailable`` where nobody answers, or what answers is no SGLang server."""
    body = await client.get("/server_info", "/get_server_info")
    try:
        return ServerFacts.model_validate_json(body)
    except ValidationError as exc:
        raise EngineUnavailable(f"the engine described itself as {body[:80]!r}") from exc


async def ask_weight_version(client: SGLangClient) -> int:
    """Of the weights that serve now; the server's arguments name those that it was started with.

    Raises ``EngineUnavailable``, also where the version is no number.
    """
    body = await client.get("/model_info", "/get_model_info")
    try:
        return version_number(_ModelInfo.model_validate_json(body).weight_version)
    except ValidationError as exc:
        raise EngineUnavailable(f"the engine described its model as {body[:80]!r}") from exc
