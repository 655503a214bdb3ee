"""The examples that users start from work as they stand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from episodes import PlainRunner, Play

from heddle.cli.tasks import read_tasks
from heddle.environments.base import ToolEnvironment
from heddle.environments.registry import EnvironmentRegistry, build_registry
from heddle.types import Json, StopReason

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> EnvironmentRegistry:
    """What the documented command line loads."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return build_registry({"units": "my_environment:UnitEnvironment"}, installed=())


def test_every_line_of_the_example_files_opens_an_episode(registry: EnvironmentRegistry) -> None:
    """Read as ``heddle run`` reads them."""
    for name in ("tasks_mixed.jsonl", "my_tasks.jsonl"):
        for prompt in read_tasks(str(EXAMPLES / name)).prompts:
            assert prompt.environment is not None
            assert registry.get(prompt.environment).reset(prompt.task).messages


def test_the_mixed_file_has_sixteen_prompts_of_three_environments() -> None:
    """No two of one id."""
    prompts = read_tasks(str(EXAMPLES / "tasks_mixed.jsonl")).prompts

    assert len({prompt.prompt_id for prompt in prompts}) == 16
    assert set(Counter(prompt.environment for prompt in prompts)) == {"math", "code", "search"}


@pytest.mark.parametrize(("value", "reward"), [(5280, 1.0), (5300, 1.0), (3, 0.0)])
async def test_the_example_environment_plays(
    registry: EnvironmentRegistry, value: float, reward: float
) -> None:
    """Look a factor up, answer, be judged within one per cent."""
    environment = registry.get("units")
    assert isinstance(environment, ToolEnvironment)
    task: dict[str, Json] = {"amount": 3, "unit": "mile", "target": "yard"}
    episode = Play(environment, task, PlainRunner(environment.backends()))

    looked_up = await episode.turn(("factor", {"unit": "mile"}))
    await episode.turn(("answer", {"value": value}))

    assert looked_up.messages[0].content == "1 mile = 1609.344 metre"
    assert reward == (await episode.reward(StopReason.TOOL_STOPPED))[0]
