"""What servers count of their decoding steps. A value, like those of ``heddle.types``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeMoments:
    """Sums over decoding steps, of the running batch and of the seconds that the step took."""

    steps: float = 0.0
    batch: float = 0.0
    seconds: float = 0.0
    batch_squared: float = 0.0
    batch_seconds: float = 0.0
    """Of the product of both."""

    def plus(self, other: DecodeMoments) -> DecodeMoments:
        """Over the steps of both."""
        return DecodeMoments(
            self.steps + other.steps,
            self.batch + other.batch,
            self.seconds + other.seconds,
            self.batch_squared + other.batch_squared,
            self.batch_seconds + other.batch_seconds,
        )

    def times(self, factor: float) -> DecodeMoments:
        """As if every step counted ``factor`` times."""
        return DecodeMoments(
            self.steps * factor,
            self.batch * factor,
            self.seconds * factor,
            self.batch_squared * factor,
            self.batch_seconds * factor,
        )

    def since(self, earlier: DecodeMoments) -> DecodeMoments:
        """Over the steps after those of ``earlier``; all of them where the count began anew meanwhile."""
        return self if self.steps < earlier.steps else self.plus(earlier.times(-1.0))
