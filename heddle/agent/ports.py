"""What an agent loop needs of the outside, as small protocols written by their consumer.

Adapters implement them: engines in ``heddle.engines``, tools in ``heddle.tools``, environments in
``heddle.environments`` or the user's own package. The journal's is in ``heddle.agent.journal``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from heddle.records import ToolCallRecord
from heddle.types import (
    CachedPrefix,
    CacheSources,
    EngineLoad,
    FinishReason,
    Json,
    Message,
    PauseMode,
    PrefixTransfer,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolSpec,
    TrajectoryId,
    WeightCall,
)

# ------------------------------------------------------------------------------------------- engine


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do, known before it is asked."""

    json_schema: bool = False
    """Can restrict a generation to a JSON schema."""
    ignore_end: bool = False
    """Can generate on past the end of the turn."""
    prefix_warmup: bool = False
    kv_transfer: bool = False
    native_priority: bool = False
    online_slots: bool = False
    pause: bool = False
    weight_update: bool = False
    """Can exchange its weights without a restart."""
    step_times: bool = False
    """Its load tells how long its decoding steps take."""
    sessions: bool = False
    """Keeps the prefix of a ``session_id`` over that of others while memory is short."""
    shared_prefixes: bool = False
    """Holds a prefix that several requests have in common once, however many of them there are."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation. Token ids go in verbatim: nothing is added, trimmed or tokenised."""

    request_id: str
    prompt_ids: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    priority: float = 0.0
    json_schema: Mapping[str, Json] | None = None
    ignore_end: bool = False
    """Never sample an id that ends the turn, so that exactly ``max_new_tokens`` come: for replays of
    recorded lengths. Logprobs are still those of the unrestricted model."""
    session_id: str | None = None
    """The trajectory whose prefix this is, where the engine can keep it for the next step."""
    deadline_s: float = 600.0
    """Wall-clock bound on the whole generation, measured from the call."""
    first_token_deadline_s: float = 300.0
    """Wall-clock bound on the first token, and on each gap between two tokens."""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly sampled tokens; ``token_ids`` and ``logprobs`` have equal length."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    weight_version: int = 0
    """Of the weights that sampled them, as far as the engine says so at once."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation: all sampled ids (an end-of-turn token included) and their logprobs."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    weight_version: int
    """Of the last token."""
    prefill_s: float
    """From sending the request to its first token, the engine's own queue included."""
    decode_s: float
    echoed_sampling: SamplingParams | None = None
    """The parameters by which the engine says it sampled; ``None`` where it does not tell."""
    weight_versions: Sequence[int] = ()
    """One per token, where the engine can exchange weights; else every token is of ``weight_version``."""
    cache_sources: CacheSources | None = None
    """``None`` where the engine does not tell them apart."""
    retractions: int = 0
    """How often the engine itself took the slot away and gave it back."""


class Engine(Protocol):
    """One inference server. Methods raise ``EngineError`` subclasses only (and ``CancelledError``)."""

    @property
    def capabilities(self) -> EngineCapabilities: ...
    @property
    def weight_version(self) -> int:
        """Of the weights that serve now; 0 are those that it was started with."""
        ...

    async def generate(
        self, request: GenerationRequest, on_tokens: Callable[[TokenChunk], None]
    ) -> Generation:
        """Stream one generation; ``on_tokens`` gets every token exactly once, as it comes.

        Cancelling the call aborts the request: when the ``CancelledError`` comes out, the slot is free.
        Raises ``EngineRejected``, ``EngineUnavailable``, ``EngineTimeout``, and ``EngineInterrupted`` where
        the engine gave the slot to another: the step goes on with the next grant, and nothing failed.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a running generation: its ``generate`` returns what there is, with ``ABORT``.

        Returns when the slot is free; an unknown id is a no-op.
        """
        ...

    async def warm_prefix(self, token_ids: Sequence[int], session_id: str | None = None) -> CachedPrefix:
        """Compute the prefix into the cache; tells what was there already, and where it came from.

        It waits behind every generation. ``session_id`` as in a ``GenerationRequest``.
        """
        ...

    async def transfer(
        self, token_ids: Sequence[int], target: Engine, session_id: str | None = None
    ) -> PrefixTransfer:
        """Bring what was computed here of a prefix to ``target``; the copy here stays valid.

        For a trajectory that generates on neither. Cancelling breaks it off. Raises ``UnsupportedByEngine``
        without ``kv_transfer`` and for a target of another kind, ``EngineRejected`` where the prefix is not
        here any more or has no room, and ``EngineUnavailable``.
        """
        ...

    async def close_session(self, session_id: str) -> None:
        """The trajectory is over: its prefix is worth no more than any other. An unknown id is a no-op.

        Raises ``UnsupportedByEngine`` without ``sessions``.
        """
        ...

    async def set_slots(self, slots: int) -> None:
        """Change how many generations run at once; those that run go on.

        Raises ``UnsupportedByEngine`` without ``online_slots``, ``EngineRejected`` for a number it cannot.
        """
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Compute nothing until ``resume``. Raises ``UnsupportedByEngine`` without ``pause``."""
        ...

    async def resume(self) -> None:
        """Go on after ``pause``; harmless where nothing pauses."""
        ...

    async def update_weights(self, path: str, version: int) -> None:
        """Load weights from a directory that the engine can read; on return they are ``version``.

        Prefixes computed by other weights are never used again. Raises ``UnsupportedByEngine`` without
        ``weight_update``, ``EngineRejected`` where the weights do not fit (the old ones go on serving).
        """
        ...

    async def begin_push(self) -> None:
        """Get ready to be handed weights by ``push_weights``. Raises ``UnsupportedByEngine``."""
        ...

    async def push_weights(self, call: WeightCall) -> None:
        """Pass one call of the trainer on; what serves is undefined until ``end_push``.

        Raises ``EngineRejected`` where the engine refuses it, ``UnsupportedByEngine``.
        """
        ...

    async def end_push(self, version: int) -> None:
        """What was pushed is whole, and is ``version`` from now on. Raises ``UnsupportedByEngine``."""
        ...

    async def flush_cache(self) -> None:
        """Forget every prefix that no running generation uses.

        Raises ``UnsupportedByEngine`` without ``weight_update``, ``EngineRejected`` while generations run.
        """
        ...

    async def load(self) -> EngineLoad: ...

    async def health(self) -> None:
        """Raises ``EngineUnavailable`` where the engine does not answer at once."""
        ...

    async def close(self) -> None:
        """Release connections; does not stop the server."""
        ...


class Tokenizer(Protocol):
    """Between text and token ids. Local and fast: called on the event loop."""

    @property
    def end_of_turn_id(self) -> int:
        """The id that a model samples to end its turn."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id at which an engine ends a generation; ``end_of_turn_id`` is one of them."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokenise; special tokens in the text become their single ids, nothing is added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens included; undecodable bytes become U+FFFD."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The prompt: chat template, tool schemas and the opening of the assistant's turn."""
        ...

    def render_observation(self, messages: Sequence[Message], *, turn_closed: bool) -> list[int]:
        """What follows an assistant's turn: its closing, the new messages, the next opening.

        ``turn_closed`` says that the model sampled the end-of-turn token itself. Appending the result
        to what was sampled gives the ids of the whole conversation without touching what was sampled.
        """
        ...


# -------------------------------------------------------------------------------------------- tools


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """An order to the Tool Manager: run this payload on the named backend."""

    call_id: str
    trajectory_id: TrajectoryId
    backend: str
    """``python`` (sandboxed code) or a backend that the environment registered."""
    name: str
    """The tool as the model named it, for records and metrics."""
    payload: Mapping[str, Json]
    timeout_s: float | None = None
    """Wall clock of the run itself (not of its queueing); ``None`` takes the configured limit."""
    attempt: int = 0
    """Of the trajectory. A result counts only where no later (``attempt``, ``retry``) was delivered."""
    retry: int = 0
    key: str = ""
    """The idempotency key (trajectory, step, call): equal where a call is delivered again."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of an invocation; failures of the *code* are results, with ``ok`` false."""

    output: str
    ok: bool
    outcome: str
    """ok, error, timed_out, memory_exceeded, output_exceeded, killed, invalid, unresolved."""
    queue_s: float
    cold_start_s: float
    run_s: float
    extra: Mapping[str, Json] = field(default_factory=dict)
    retries: int = 0


class ToolInvoker(Protocol):
    """Invokes tools on behalf of one trajectory, inside its deadline, and records each call."""

    async def invoke(
        self,
        call: ToolCall,
        *,
        backend: str,
        payload: Mapping[str, Json] | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        """Run ``call`` on ``backend``; ``payload`` defaults to its arguments. Raises ``ToolBackendError``."""
        ...

    def reject(self, call: ToolCall, message: str) -> ToolResult:
        """Record a call that cannot be run (unknown tool, bad arguments) as an invalid result."""
        ...


# -------------------------------------------------------------------------------------- environment


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded lengths: step ``i`` samples exactly ``output_tokens[i]``, then makes the calls ``calls[i]``,
    whatever the model would say. Equal lengths, at least one step."""

    output_tokens: tuple[int, ...]
    calls: tuple[tuple[ToolCall, ...], ...]


@dataclass(frozen=True, slots=True)
class EnvironmentStart:
    """How an episode opens."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model did in one step."""

    step_index: int
    text: str
    """Exactly what was decoded, without the end-of-turn token."""
    content: str
    """The text outside of tool calls."""
    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]
    """One message for each malformed call."""
    truncated: bool
    """The step hit its token limit."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the environment answers: messages to append, or the end of the episode, or both."""

    messages: tuple[Message, ...] = ()
    stop_reason: StopReason | None = None
    """Set to end: usually ``COMPLETED`` or ``TOOL_STOPPED``."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory as its environment sees it when it is asked for the reward."""

    task: Mapping[str, Json]
    messages: tuple[Message, ...]
    tool_calls: tuple[ToolCallRecord, ...]
    stop_reason: StopReason
    steps: int


@dataclass(frozen=True, slots=True)
class Reward:
    """A scalar reward and whatever explains it."""

    value: float
    info: Mapping[str, Json] = field(default_factory=dict)


class Environment(Protocol):
    """A kind of task. One instance serves many trajectories at once, so it keeps no state of any.

    Everything that an episode needs later must be in ``task`` or in ``messages``: a trajectory that is
    resumed after a crash brings back exactly these.
    """

    @property
    def name(self) -> str: ...

    def reset(self, task: Mapping[str, Json]) -> EnvironmentStart:
        """Open an episode. Raises ``InvalidRequest`` with a path relative to the task."""
        ...

    async def step(
        self, task: Mapping[str, Json], messages: Sequence[Message], turn: Turn, tools: ToolInvoker
    ) -> StepOutcome:
        """React to the model's turn, which is the last of ``messages``."""
        ...

    async def reward(self, episode: Episode, tools: ToolInvoker) -> Reward | None:
        """Judge a finished episode; ``None`` where there is nothing to say."""
        ...
