"""Batches that cannot be accepted: nothing is started, and the field at fault is named."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from job_harness import TOKENIZER, Job, ScriptedEnvironment

from heddle.agent.ports import EnvironmentStart
from heddle.errors import ConfigError, InvalidRequest
from heddle.types import Message, ToolSpec


async def _refused(tmp_path: Path, **overrides: object) -> InvalidRequest:
    """Why a batch was refused; nothing of it is known afterwards."""
    job = Job()
    async with job.coordinator(tmp_path) as coordinator:
        with pytest.raises(InvalidRequest) as refused:
            await coordinator.submit(job.batch(**overrides))
        assert (await coordinator.batches(after=None, limit=1)).batches == []
    return refused.value


async def test_an_environment_that_cannot_open_a_task_refuses_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the user's code raises or returns, the caller hears which prompt it was."""

    def buggy(self: ScriptedEnvironment, task: dict[str, object]) -> EnvironmentStart | None:
        return None if task else cast("EnvironmentStart", task["question"])

    monkeypatch.setattr(ScriptedEnvironment, "reset", buggy)
    error = await _refused(tmp_path, prompts=[{"task": {}}])
    assert (error.path, error.code) == ("prompts[0].task", "environment_fault")
    assert "KeyError: 'question'" in error.message
    error = await _refused(tmp_path, prompts=[{"task": {"question": 1}}])
    assert error.message.endswith("reset returned NoneType")


async def test_tools_that_no_grammar_can_bound_refuse_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request asked for the constraint, so its field is named."""
    tool = ToolSpec("t", "Tool.", {"type": "object", "properties": {"a": {"allOf": []}}})
    start = EnvironmentStart((Message("user", "Go."),), (tool,))
    monkeypatch.setattr(ScriptedEnvironment, "reset", lambda self, task: start)
    error = await _refused(tmp_path, tools={"constrained": True})
    assert (error.path, error.code) == ("tools.constrained", "cannot_constrain")


async def test_a_prompt_that_the_template_cannot_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat template may refuse a conversation; that is the request's fault, not the server's."""

    def refuse(self: object, messages: object, tools: object) -> list[int]:
        raise ConfigError("the chat template cannot render this conversation")

    monkeypatch.setattr(type(TOKENIZER), "render", refuse)
    error = await _refused(tmp_path)
    assert (error.path, error.code) == ("prompts[0].task", "prompt_not_renderable")
