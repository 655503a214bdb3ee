"""A tree over the past of a trajectory: each node knows what remained for those that came through it.

From the root to the leaf the estimate is corrected by ever more specific nodes, each in the measure of what
it has seen, so that a rare state speaks with its parent's voice. Nothing is fitted: it follows the policy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pydantic import TypeAdapter

from heddle.types import JsonWritable

MOST_NODES = 8_192
"""The node longest without news goes first."""

MEMORY = 300.0
"""Values that a node's mean remembers."""

DOUBT = 8.0
"""Values that a parent counts for in its child."""

_STATE: TypeAdapter[dict[str, tuple[float, float]]] = TypeAdapter(dict[str, tuple[float, float]])


class EvidenceTree:
    """Nodes are named by their whole path."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Count and mean, by path."""

    def estimate(self, paths: Sequence[str]) -> float:
        """``paths``: the nodes from the root down. 0 where none was ever reached."""
        estimate, nodes = 0.0, self._nodes
        for path in paths:
            node = nodes.get(path)
            if node is None:
                break
            count, mean = node
            estimate = (count * mean + DOUBT * estimate) / (count + DOUBT)
        return estimate

    def add(self, paths: Sequence[str], value: float) -> None:
        """A trajectory came through these nodes, and ``value`` turned out to be true."""
        nodes = self._nodes
        for path in paths:
            node = nodes.get(path)
            if node is None:
                nodes[path] = (1.0, value)
                continue
            count = min(node[0] + 1.0, MEMORY)
            nodes[path] = (count, node[1] + (value - node[1]) / count)
            nodes.move_to_end(path)
        while len(nodes) > MOST_NODES:
            nodes.popitem(last=False)

    def relearn(self, count: float) -> None:
        """No node counts for more than so many values."""
        for path, (seen, mean) in self._nodes.items():
            self._nodes[path] = (min(seen, count), mean)

    def save(self) -> JsonWritable:
        """Count and mean by path."""
        return dict(self._nodes)

    def restore(self, state: JsonWritable) -> None:
        """Raises ``pydantic.ValidationError``."""
        self._nodes = OrderedDict(_STATE.validate_python(state))
