"""Where an agent loop calls into an environment: the user's code, held to its contract.

Whatever it raises or returns wrongly ends its own trajectory, as data, and harms no other: a value that
could not be stored later is refused here, where it is known whose it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import orjson

from heddle.agent.link import Ending
from heddle.agent.ports import Environment, Episode, Reward, StepOutcome, ToolInvoker, Turn
from heddle.errors import EnvironmentFault, ToolBackendError
from heddle.types import Json, Message, StopReason, TrajectoryStatus


class TrajectoryEnded(Exception):
    """Control flow inside the agent loop: the trajectory is over, for the reason carried."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


async def call_step(
    environment: Environment,
    task: Mapping[str, Json],
    messages: Sequence[Message],
    turn: Turn,
    tools: ToolInvoker,
) -> StepOutcome:
    """``environment.step``. Raises ``TrajectoryEnded`` for whatever goes wrong in it."""
    try:
        outcome = await environment.step(task, messages, turn, tools)
        _check_outcome(outcome)
    except asyncio.CancelledError as exc:
        if _asked_to_end():
            raise
        raise TrajectoryEnded(_stray_cancellation("environment")) from exc
    except Exception as exc:  # the environment is the user's code: whatever it raises is its fault
        raise TrajectoryEnded(environment_ending(exc, "environment")) from exc
    return outcome


async def call_reward(environment: Environment, episode: Episode, tools: ToolInvoker) -> Reward | None:
    """``environment.reward``. Raises ``TrajectoryEnded`` for whatever goes wrong in it."""
    try:
        return _checked_reward(await environment.reward(episode, tools))
    except asyncio.CancelledError as exc:
        if _asked_to_end():
            raise
        raise TrajectoryEnded(_stray_cancellation("reward")) from exc
    except Exception as exc:  # the environment is the user's code: whatever it raises is its fault
        raise TrajectoryEnded(environment_ending(exc, "reward")) from exc


def environment_ending(exc: Exception, stage: str) -> Ending:
    """Whose fault it is that an environment raised: the tool infrastructure's, or its own."""
    causes = exc.exceptions if isinstance(exc, ExceptionGroup) else (exc,)
    infra = next((c for c in causes if isinstance(c, ToolBackendError)), None)
    if infra is not None:
        return Ending(StopReason.TOOL_FAILED, str(infra), stage="tool")
    first = causes[0]
    return Ending(StopReason.TOOL_FAILED, f"{type(first).__name__}: {first}", stage=stage, data_fault=True)


def _asked_to_end() -> bool:
    """Whether somebody cancels this task.

    If not, the environment awaited something that was cancelled: passed on, that would end the task without a
    word, and its trajectory would stay open for ever.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _stray_cancellation(stage: str) -> Ending:
    return environment_ending(EnvironmentFault("it was cancelled from within"), stage)


def _check_outcome(outcome: object) -> None:
    if not isinstance(outcome, StepOutcome):
        raise EnvironmentFault(f"step() returned {type(outcome).__name__}, not a StepOutcome")
    if outcome.stop_reason is not None and outcome.stop_reason.status is TrajectoryStatus.FAILED:
        raise EnvironmentFault(f"step() ends with {outcome.stop_reason}; raise what failed instead")
    _check_storable(outcome.messages, "messages of step()")


def _checked_reward(reward: object) -> Reward | None:
    if reward is None:
        return None
    if not isinstance(reward, Reward):
        raise EnvironmentFault(f"reward() returned {type(reward).__name__}, not a Reward")
    value = float(reward.value)  # a numpy scalar is welcome, and becomes what JSON knows
    if not math.isfinite(value):
        raise EnvironmentFault(f"reward() returned {value}")
    info = dict(reward.info)
    _check_storable(info, "info of reward()")
    return Reward(value, info)


def _check_storable(value: object, what: str) -> None:
    try:
        orjson.dumps(value)
    except (TypeError, ValueError) as exc:
        raise EnvironmentFault(f"the {what} cannot be written as JSON: {exc}") from exc
