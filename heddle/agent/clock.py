"""Where a trajectory's wall time went: Eq. 1 of the paper, measured.

Named parts are added as they are measured; whatever of the wall time no part claims is the
coordinator's own. A part can never make the sum exceed the wall: concurrent tool calls are scaled to
the interval that they shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heddle.agent.ports import ToolResult
from heddle.records import Timing


@dataclass(slots=True)
class TimingParts:
    """Seconds by cause, so far. Journalled with every step, so that a resumed trajectory keeps them."""

    queue: float = 0.0
    prefill: float = 0.0
    decode_base: float = 0.0
    interference: float = 0.0
    preemption: float = 0.0
    migration: float = 0.0
    tool_queue: float = 0.0
    tool_cold: float = 0.0
    tool_run: float = 0.0
    engine_stall: float = 0.0

    @property
    def total(self) -> float:
        moves = self.preemption + self.migration
        engine = self.prefill + self.decode_base + self.interference + self.engine_stall
        return self.queue + engine + moves + self.tool_queue + self.tool_cold + self.tool_run


@dataclass(slots=True)
class TrajectoryClock:
    """The stopwatch of one trajectory. ``now`` is a monotonic clock in seconds."""

    now: Callable[[], float]
    parts: TimingParts = field(default_factory=TimingParts)
    earlier_wall: float = 0.0
    """Wall time before a crash of the coordinator; the time that it was down does not count."""
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.now()

    @property
    def wall(self) -> float:
        return self.earlier_wall + self.now() - self._started

    def add_generation(self, prefill_s: float, decode_s: float, decode_base_s: float) -> None:
        """A generation that succeeded; ``decode_base_s`` is what its tokens cost alone."""
        base = min(decode_s, decode_base_s)
        self.parts.prefill += prefill_s
        self.parts.decode_base += base
        self.parts.interference += decode_s - base

    def add_tools(self, results: Sequence[ToolResult], elapsed_s: float) -> None:
        """Tool calls that ran, perhaps side by side, within ``elapsed_s`` of wall time."""
        queue = sum(r.queue_s for r in results)
        cold = sum(r.cold_start_s for r in results)
        run = sum(r.run_s for r in results)
        claimed = queue + cold + run
        scale = min(1.0, elapsed_s / claimed) if claimed > 0.0 else 0.0
        self.parts.tool_queue += queue * scale
        self.parts.tool_cold += cold * scale
        self.parts.tool_run += run * scale

    def timing(self) -> Timing:
        """The finished split; ``coordinator`` is what nothing else claims."""
        wall = self.wall
        p = self.parts
        return Timing(
            queue=p.queue,
            prefill=p.prefill,
            decode_base=p.decode_base,
            interference=p.interference,
            preemption=p.preemption,
            migration=p.migration,
            tool_queue=p.tool_queue,
            tool_cold=p.tool_cold,
            tool_run=p.tool_run,
            engine_stall=p.engine_stall,
            coordinator=wall - p.total,
            wall=wall,
        )
