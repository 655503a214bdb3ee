"""``tool_state``: what remained after the same tools had the same outcome, and after a step of the same size.

Two trees: over the tools of the last step and how each ended (a failed test means another round), and over
the sizes of the last step and of all steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from heddle.predict.buckets import Floats
from heddle.predict.point import Point
from heddle.predict.sources import Context, Ended, SilentSource
from heddle.predict.sources.tree import EvidenceTree
from heddle.types import JsonWritable

_RELEARN = 4.0


class ToolState(SilentSource):
    """One column: deviation after the last step's tools and their outcomes."""

    name = "tool_state"
    prior = (0.2,)

    def __init__(self) -> None:
        self._tree = EvidenceTree()

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        known: dict[Hashable, float] = {}
        column = []
        for point, bucket in zip(points, context.buckets.tolist(), strict=True):
            state = self._state(point, bucket)
            estimate = known.get(state)
            if estimate is None:
                estimate = known[state] = self._tree.estimate(self._paths(point, bucket))
            column.append(estimate)
        rows[:, 0] = column

    def learn(self, ended: Ended) -> None:
        triples = zip(ended.points, ended.buckets.tolist(), ended.residuals.tolist(), strict=True)
        for point, bucket, residual in triples:
            self._tree.add(self._paths(point, bucket), residual)

    def relearn(self) -> None:
        self._tree.relearn(_RELEARN)

    def save(self) -> JsonWritable:
        return self._tree.save()

    def restore(self, state: JsonWritable) -> None:
        self._tree.restore(state)

    def _state(self, point: Point, bucket: int) -> Hashable:
        """Points of the same state have the same paths: of a batch few differ."""
        step = point.last_step
        return (bucket, step.tool_names, step.tool_outcomes) if point.steps_done else None

    def _paths(self, point: Point, bucket: int) -> Sequence[str]:
        step = point.last_step
        if not point.steps_done:
            return ()
        root = str(bucket)
        tools = f"{root}/{'+'.join(step.tool_names)}"
        if not step.tool_outcomes:
            return root, tools
        return root, tools, f"{tools}/{'+'.join(step.tool_outcomes)}"


class StepSize(ToolState):
    """One column: deviation after a step of this size in a trajectory of this size."""

    name = "step_size"
    prior = (0.1,)

    def _state(self, point: Point, bucket: int) -> Hashable:
        if not point.steps_done:
            return (_half_octave(point.prompt_tokens),)
        return bucket, _half_octave(point.last_step.output_tokens), _half_octave(point.generated_tokens)

    def _paths(self, point: Point, bucket: int) -> Sequence[str]:
        root = str(bucket)
        if not point.steps_done:
            prompt = f"{root}/{point.prompt_tokens.bit_length()}"
            return root, prompt, f"{prompt}/{_half_octave(point.prompt_tokens)}"
        output = f"{root}/{_half_octave(point.last_step.output_tokens)}"
        return root, output, f"{output}/{_half_octave(point.generated_tokens)}"


def _half_octave(tokens: int) -> int:
    """Sizes within a factor of about 1.4."""
    return (tokens * tokens).bit_length()
