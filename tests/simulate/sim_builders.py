"""Hardware with round numbers, workloads, and what must hold of every result."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.planning.profile import DegreeProfile
from heddle.simulate.hardware import EngineRules, EngineTimes, Hardware, PrefillMode, TransferLink
from heddle.simulate.result import SimulationResult
from heddle.simulate.workload import Workload, WorkStep, WorkTrajectory
from heddle.types import GroupId, StopReason, TrajectoryId

STEP_S = 0.01
"""Of a batch of one without context; each further member adds a tenth, each 1,000 tokens of context too."""
PREFILL_PER_S = 1000.0


def step_s(batch: int, context: float = 0.0, degree: int = 1) -> float:
    """What the hardware of these tests takes for a step."""
    return STEP_S * (1 + 0.1 * (batch - 1)) * (1 + context / 10_000) / degree


def make_hardware(
    *,
    gpus: int = 1,
    degrees: Sequence[int] = (1,),
    kv_tokens: int | None = None,
    mode: PrefillMode = PrefillMode.EXCLUSIVE,
    chunk_tokens: int = 512,
    abort_s: float = 0.0,
    request_s: float = 0.0,
    prefill_request_s: float = 0.0,
    share_prompts: bool = True,
    share_running: bool = True,
) -> Hardware:
    """Workers whose times are linear in batch and context."""
    return Hardware(
        gpus=gpus,
        engines=tuple(
            EngineTimes(
                tp_degree=degree,
                contexts=(0.0, 100_000.0),
                profiles=tuple(
                    DegreeProfile.measured(degree, [(1, step_s(1, c, degree)), (101, step_s(101, c, degree))])
                    for c in (0.0, 100_000.0)
                ),
                prefill_tokens_per_s=PREFILL_PER_S * degree,
                kv_capacity_tokens=kv_tokens,
            )
            for degree in degrees
        ),
        rules=EngineRules(
            prefill=mode,
            chunk_tokens=chunk_tokens,
            abort_s=abort_s,
            request_s=request_s,
            prefill_request_s=prefill_request_s,
            share_prompts=share_prompts,
            share_running=share_running,
        ),
        link=TransferLink(bytes_per_s=1e6, latency_s=0.0, kv_bytes_per_token=1000),
    )


def make_trajectory(
    name: str,
    output_tokens: Sequence[int],
    *,
    prompt: int = 100,
    observed: int = 10,
    tool_s: float | Sequence[float] = 1.0,
    group: str | None = None,
    arrival_s: float = 0.0,
) -> WorkTrajectory:
    """One trajectory; a tool follows each step but the last."""
    last = len(output_tokens) - 1
    seconds = [tool_s] * last if isinstance(tool_s, int | float) else list(tool_s)
    steps = [
        WorkStep(
            prompt_tokens=observed if index else prompt,
            output_tokens=tokens,
            tool_names=("python",) if index < last else (),
            tool_seconds=seconds[index] if index < last else 0.0,
        )
        for index, tokens in enumerate(output_tokens)
    ]
    return WorkTrajectory(TrajectoryId(name), GroupId(group or f"{name}-group"), tuple(steps), arrival_s)


def make_workload(*trajectories: WorkTrajectory) -> Workload:
    """All of these."""
    return Workload("made", trajectories)


def check_result(workload: Workload, result: SimulationResult) -> None:
    """Nothing lost, nothing made up, every second told apart; who reached the end did what was asked."""
    assert [o.trajectory_id for o in result.outcomes] == [t.trajectory_id for t in workload.trajectories]
    for work, outcome in zip(workload.trajectories, result.outcomes, strict=True):
        assert abs(outcome.parts.total_s - (outcome.finished_at - outcome.arrived_at)) < 1e-6
        assert 0 <= outcome.recomputed_tokens <= outcome.computed_tokens
        if outcome.stop_reason is StopReason.COMPLETED:
            assert outcome.generated_tokens == work.total_tokens
            assert outcome.steps == len(work.steps)
        else:
            assert outcome.generated_tokens <= work.total_tokens
    generated = sum(outcome.generated_tokens for outcome in result.outcomes)
    assert sum(worker.generated_tokens for worker in result.workers) == generated
