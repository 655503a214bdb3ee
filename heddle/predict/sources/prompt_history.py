"""``prompt_history``: how long the same prompt's trajectories were in earlier batches.

The policy changes between epochs, but which prompts make it write much changes slowly: RhymeRL and Seer
schedule by this alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pydantic import TypeAdapter

from heddle.predict.buckets import Floats
from heddle.predict.point import Point
from heddle.predict.sources import Context, Ended, SilentSource
from heddle.types import JsonWritable

MOST_PROMPTS = 16_384
"""Prompts remembered; the one seen longest ago goes first."""

MEMORY = 16.0
"""Trajectories of one prompt that its mean remembers."""

DOUBT = 1.0
"""Trajectories that the mean of the workload counts for in a prompt's."""

_STATE: TypeAdapter[dict[str, tuple[float, float]]] = TypeAdapter(dict[str, tuple[float, float]])


class PromptHistory(SilentSource):
    """One column: mean surprise of the prompt's earlier trajectories, shrunk by how few they are."""

    name = "prompt_history"
    prior = (0.7,)

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Count and mean surprise, by key."""

    def fill(self, points: Sequence[Point], context: Context, rows: Floats) -> None:
        known = self._prompts
        if not known:
            return
        for index, point in enumerate(points):
            found = None if point.prompt_key is None else known.get(point.prompt_key)
            if found is not None:
                count, mean = found
                rows[index, 0] = mean * count / (count + DOUBT)

    def learn(self, ended: Ended) -> None:
        key = ended.points[0].prompt_key
        if key is None:
            return
        count, mean = self._prompts.pop(key, (0.0, 0.0))
        count = min(count + 1.0, MEMORY)
        self._prompts[key] = (count, mean + (ended.surprise - mean) / count)
        if len(self._prompts) > MOST_PROMPTS:
            self._prompts.popitem(last=False)

    def relearn(self) -> None:
        """What was seen of each prompt counts as one trajectory."""
        for key, (count, mean) in self._prompts.items():
            self._prompts[key] = (min(count, 1.0), mean)

    def save(self) -> JsonWritable:
        return dict(self._prompts)

    def restore(self, state: JsonWritable) -> None:
        self._prompts = OrderedDict(_STATE.validate_python(state))
