"""Other splits of a recording than its own: for choosing settings, and where the test split is small."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from heddle.predict.evaluation.recorded import RecordedTrajectory

FOLDS = 5


def folds(trajectories: Sequence[RecordedTrajectory], seed: int) -> list[list[RecordedTrajectory]]:
    """``FOLDS`` times all trajectories, each prompt held out once. Folds without a prompt are left out."""
    of = [_fold(trajectory.prompt_id, seed) for trajectory in trajectories]
    return [
        [replace(t, held_out=own == fold) for t, own in zip(trajectories, of, strict=True)]
        for fold in sorted(set(of))
    ]


def _fold(prompt_id: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}/{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % FOLDS
