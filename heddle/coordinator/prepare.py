"""From a request to what agent loops run: environments asked, prompts rendered, limits checked.

Nothing here has side effects, so that a batch is accepted wholly or not at all.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heddle.agent.loop import TrajectoryRun
from heddle.agent.order import PreparedPrompt, TrajectoryOrder
from heddle.agent.ports import EngineCapabilities, Environment, EnvironmentStart, Tokenizer
from heddle.api.schemas import BatchRequest, PromptRequest
from heddle.control.events import TrajectorySpec
from heddle.environments.registry import EnvironmentRegistry
from heddle.errors import ConfigError, InvalidRequest
from heddle.text.constrain import FORCED_PREFIX, tool_call_schema
from heddle.text.parsers import FencedParser, ReplayParser, ToolCallParser, make_parser
from heddle.turns import Turns
from heddle.types import BatchId, GroupId, Json, ToolSpec, TrajectoryId

MAX_TRAJECTORIES_PER_BATCH = 1_000_000

PROMPTS_PER_SLICE = 16
"""Prompts rendered in one turn of the event loop; one takes well under a millisecond."""


@dataclass(frozen=True, slots=True)
class PromptPreparer:
    """Validates and renders what a request asks for."""

    environments: EnvironmentRegistry
    tokenizer: Tokenizer
    capabilities: EngineCapabilities
    context_tokens: int
    turns: Turns = field(default_factory=Turns)
    """Shared by all that is submitted at the same time."""

    async def prepare(self, request: BatchRequest) -> Sequence[PreparedPrompt]:
        """Raises ``InvalidRequest`` that names the prompt."""
        self._check_whole(request)
        prepared: list[PreparedPrompt] = []
        for index, prompt in enumerate(request.prompts):
            if index % PROMPTS_PER_SLICE == 0:
                await self.turns.next()
            prepared.append(self._prompt(request, index, prompt))
        _check_unique([p.prompt_id for p in prepared])
        return prepared

    def _check_whole(self, request: BatchRequest) -> None:
        total = len(request.prompts) * request.samples_per_prompt
        if total > MAX_TRAJECTORIES_PER_BATCH:
            raise InvalidRequest(
                f"{total} trajectories in one batch; at most {MAX_TRAJECTORIES_PER_BATCH}",
                path="samples_per_prompt",
            )
        if request.tools.constrained and not self.capabilities.json_schema:
            raise InvalidRequest("this engine cannot constrain tool calls", path="tools.constrained")
        if request.tools.constrained and request.tools.parser != "hermes":
            raise InvalidRequest("constrained tool calls need the hermes parser", path="tools.parser")

    def _prompt(self, request: BatchRequest, index: int, prompt: PromptRequest) -> PreparedPrompt:
        path = f"prompts[{index}]"
        environment = self._environment(request, prompt, path)
        start = _open(environment, prompt, path)
        self._check_replay(start, request, path)
        constrained = request.tools.constrained and bool(start.tools)
        forced = self.tokenizer.encode(FORCED_PREFIX) if constrained else []
        prompt_ids = self._render(start, path)
        if len(prompt_ids) + len(forced) >= self.context_tokens:
            raise InvalidRequest(
                f"the prompt has {len(prompt_ids) + len(forced)} tokens, "
                f"which leaves no room in a context of {self.context_tokens}",
                path=f"{path}.task",
                code="prompt_too_long",
            )
        return PreparedPrompt(
            prompt_id=prompt.prompt_id or f"p{index}",
            environment=environment,
            task=prompt.task,
            messages=start.messages,
            tools=start.tools,
            prompt_ids=prompt_ids,
            forced_ids=forced,
            json_schema=_schema(start.tools) if constrained else None,
            parser=_parser(request.tools.parser, start),
            metadata=prompt.metadata,
            step_tokens=None if start.replay is None else start.replay.output_tokens,
        )

    def _check_replay(self, start: EnvironmentStart, request: BatchRequest, path: str) -> None:
        replay = start.replay
        if replay is None:
            return
        if not self.capabilities.ignore_end:
            raise InvalidRequest("this engine cannot force lengths", path=f"{path}.environment")
        if request.tools.constrained:
            raise InvalidRequest("a replay has its calls recorded", path="tools.constrained")
        for name, limit, needed in (
            ("max_steps", request.limits.max_steps, len(replay.output_tokens)),
            ("max_tokens", request.limits.max_tokens, sum(replay.output_tokens)),
        ):
            if limit < needed:
                raise InvalidRequest(f"{path} replays {needed}, {name} is {limit}", path=f"limits.{name}")

    def _render(self, start: EnvironmentStart, path: str) -> list[int]:
        try:
            return self.tokenizer.render(start.messages, start.tools)
        except ConfigError as exc:
            raise InvalidRequest(str(exc), path=f"{path}.task", code="prompt_not_renderable") from exc

    def _environment(self, request: BatchRequest, prompt: PromptRequest, path: str) -> Environment:
        name = prompt.environment or request.environment
        if name is None:
            raise InvalidRequest(
                "no environment: name one for the batch or for this prompt", path=f"{path}.environment"
            )
        where = f"{path}.environment" if prompt.environment else "environment"
        try:
            return self.environments.get(name)
        except InvalidRequest as exc:
            raise InvalidRequest(exc.message, path=where, code="unknown_environment") from exc


def _open(environment: Environment, prompt: PromptRequest, path: str) -> EnvironmentStart:
    """Open an episode. Raises ``InvalidRequest`` with the path of what the environment does not take."""
    try:
        start = environment.reset(prompt.task)
    except InvalidRequest as exc:
        inner = f".{exc.path}" if exc.path else ""
        raise InvalidRequest(exc.message, path=f"{path}.task{inner}", code=exc.code) from exc
    except Exception as exc:  # the environment is the user's code: whatever it raises is its fault
        raise _fault(environment, f"{type(exc).__name__}: {exc}", path) from exc
    if not isinstance(start, EnvironmentStart):  # the user's code need not be typed
        raise _fault(environment, f"reset returned {type(start).__name__}", path)
    return start


def _fault(environment: Environment, what: str, path: str) -> InvalidRequest:
    message = f"environment {environment.name!r} cannot open this task: {what}"
    return InvalidRequest(message, path=f"{path}.task", code="environment_fault")


def _schema(tools: Sequence[ToolSpec]) -> dict[str, Json]:
    try:
        return tool_call_schema(tools)
    except ConfigError as exc:
        raise InvalidRequest(str(exc), path="tools.constrained", code="cannot_constrain") from exc


def _parser(name: str, start: EnvironmentStart) -> ToolCallParser:
    """The parser of this name; a fenced block goes to the first tool that takes ``code``."""
    if start.replay is not None:
        return ReplayParser(start.replay.calls)
    if name != "fenced":
        return make_parser(name)
    for tool in start.tools:
        properties = tool.parameters.get("properties")
        if isinstance(properties, dict) and "code" in properties:
            return FencedParser(tool=tool.name, argument="code")
    return FencedParser()


def _check_unique(prompt_ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for index, prompt_id in enumerate(prompt_ids):
        if prompt_id in seen:
            raise InvalidRequest(f"prompt id {prompt_id!r} occurs twice", path=f"prompts[{index}].prompt_id")
        seen.add(prompt_id)


def orders(
    batch_id: BatchId, request: BatchRequest, prompts: Sequence[PreparedPrompt], *, attempt: int = 0
) -> Iterator[TrajectoryOrder]:
    """Every trajectory of the batch, group after group; ``attempt`` is that of those without a journal."""
    sampling, limits = request.sampling.to_params(), request.limits.to_limits()
    return (
        TrajectoryOrder(
            trajectory_id=TrajectoryId(f"{batch_id}-g{group}-t{sample}"),
            batch_id=batch_id,
            group_id=GroupId(f"{batch_id}-g{group}"),
            sample_index=sample,
            attempt=attempt,
            prompt=prompt,
            sampling=sampling,
            limits=limits,
        )
        for group, prompt in enumerate(prompts)
        for sample in range(request.samples_per_prompt)
    )


def _prompt_key(prompt: PreparedPrompt) -> str:
    """The same for the same ids in the same environment, whatever the batch calls the prompt."""
    return f"{prompt.environment.name}/{zlib.crc32(array('i', prompt.prompt_ids).tobytes())}"


def spec(run: TrajectoryRun) -> TrajectorySpec:
    """The trajectory as the control plane gets to know it."""
    order = run.order
    limits, recorded = order.limits, order.prompt.step_tokens
    return TrajectorySpec(
        trajectory_id=order.trajectory_id,
        group_id=order.group_id,
        prompt_tokens=len(order.prompt.prompt_ids),
        max_tokens=limits.max_tokens,
        context_tokens=run.context_tokens,
        generated_tokens=run.sampled_tokens,
        steps_done=run.steps_done,
        between=run.between,
        max_tokens_per_step=limits.max_tokens_per_step if recorded is None else max(recorded),
        preemptible=order.prompt.resumable,
        known_total_tokens=None if recorded is None else sum(recorded),
        workload=order.prompt.environment.name,
        prompt_key=_prompt_key(order.prompt),
    )
