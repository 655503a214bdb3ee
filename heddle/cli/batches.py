"""A batch from the options of the command line, shared by ``heddle run`` and ``heddle submit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from heddle.api.schemas import BatchRequest, LimitsRequest, SamplingRequest, ToolUseRequest
from heddle.cli.tasks import TaskFile
from heddle.errors import InvalidRequest
from heddle.validation import first_fault


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the command line says of a batch; ``None`` leaves the default of the schema."""

    batch_id: str | None
    environment: str | None
    samples_per_prompt: int | None
    constrained: bool | None
    parser: str | None
    temperature: float | None
    seed: int | None
    max_steps: int | None
    max_tokens: int | None
    max_tokens_per_step: int | None
    max_tool_calls: int | None
    timeout_s: float | None
    batch_timeout_s: float | None


def build_request(tasks: TaskFile, options: BatchOptions) -> BatchRequest:
    """The batch to submit. Raises ``InvalidRequest`` that names the option."""
    given = {name: value for name, value in asdict(options).items() if value is not None}

    def pick(schema: type[Any]) -> dict[str, Any]:
        return {name: given[name] for name in schema.model_fields if name in given}

    _require_environment(tasks, options)
    return _named_by_option(
        lambda: BatchRequest.model_validate(
            pick(BatchRequest)
            | {
                "prompts": list(tasks.prompts),
                "sampling": pick(SamplingRequest),
                "limits": pick(LimitsRequest),
                "tools": pick(ToolUseRequest),
            }
        )
    )


def _require_environment(tasks: TaskFile, options: BatchOptions) -> None:
    if options.environment is not None:
        return
    for prompt, line in zip(tasks.prompts, tasks.lines, strict=True):
        if prompt.environment is None:
            raise InvalidRequest(
                "missing; name it on the line or with --environment", path=f"{tasks.name}:{line}: environment"
            )


_OPTION_NAMES: Mapping[str, str] = {
    "samples_per_prompt": "--samples",
    "timeout_s": "--timeout",
    "batch_timeout_s": "--batch-timeout",
}


def _named_by_option(build: Callable[[], BatchRequest]) -> BatchRequest:
    try:
        return build()
    except ValidationError as exc:
        fault = first_fault(exc)
        field = str(fault.location[-1]) if fault.location else "batch"
        option = _OPTION_NAMES.get(field, "--" + field.replace("_", "-"))
        raise InvalidRequest(fault.message, path=option) from exc
