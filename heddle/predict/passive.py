"""What predictors share that do not combine estimates: they take over what comes from outside."""

from __future__ import annotations

from heddle.errors import ConfigError
from heddle.types import JsonWritable, Prediction, TrajectoryId, TrajectoryView, Trust


class Passive:
    """Learns nothing, judges nothing, and has no state; subclasses override what they do have."""

    name: str

    def refine(self, trajectory: TrajectoryView, estimate: Prediction) -> Prediction | None:
        """The estimate itself, unless a newer one is known."""
        known = trajectory.prediction
        if known is not None and known.made_after_step > estimate.made_after_step:
            return None
        return estimate

    def observe_step(self, trajectory: TrajectoryView) -> None:
        """Nothing to learn."""

    def observe_finished(self, trajectory: TrajectoryView) -> None:
        """Nothing to learn."""

    def forget(self, trajectory_id: TrajectoryId) -> None:
        """Nothing is remembered."""

    @property
    def waiting(self) -> bool:
        """Nothing waits to be learned."""
        return False

    def settle(self) -> None:
        """Nothing to learn."""

    def trust(self) -> Trust | None:
        """Nobody measured it."""
        return None

    def save(self) -> JsonWritable:
        """There is nothing to save."""
        return None

    def restore(self, state: JsonWritable) -> None:
        """Raises ``ConfigError`` for the state of another predictor."""
        if state is not None:
            raise ConfigError(f"the predictor {self.name!r} keeps no state, but was given some")
