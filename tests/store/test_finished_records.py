"""What has finished is read out of a store that somebody else owns, as ``heddle predictor`` does."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from store_builders import make_batch, make_trajectory
from typer.testing import CliRunner

from heddle.cli.commands import app
from heddle.cli.recordings import read_recordings
from heddle.errors import InvalidRequest, StoreError
from heddle.store.finished import RECORDS_AT_ONCE, STORE_NAME
from heddle.store.sqlite import open_store
from heddle.types import StopReason, TrajectoryStatus


async def test_a_store_is_read_while_its_owner_writes(tmp_path: Path) -> None:
    """By its directory or its file; in pages, without what was cancelled, and without a lock of its own."""
    async with open_store(tmp_path / STORE_NAME) as store:
        await store.add_batch(make_batch(total=RECORDS_AT_ONCE + 3))
        for number in range(RECORDS_AT_ONCE + 1):
            await store.commit(make_trajectory(f"b-g0-t{number}"))
        cancelled = replace(
            make_trajectory("b-g1-t0"), status=TrajectoryStatus.ABORTED, stop_reason=StopReason.CANCELLED
        )
        await store.commit(cancelled)
        read = await asyncio.to_thread(read_recordings, tmp_path)
        await store.commit(make_trajectory("b-g1-t1"))
        again = await asyncio.to_thread(read_recordings, tmp_path / STORE_NAME)
    assert [t.trajectory_id for t in read] == sorted(f"b-g0-t{n}" for n in range(RECORDS_AT_ONCE + 1))
    assert len(again) == RECORDS_AT_ONCE + 2
    assert read_recordings(tmp_path) == again
    assert read[0].total_tokens == make_trajectory().sampled_tokens


def test_models_are_trained_from_a_store(tmp_path: Path) -> None:
    """The command takes the data directory; one without a store is complained of by its name."""
    pytest.importorskip("lightgbm", reason="the extra 'learn' is not installed")

    async def fill() -> None:
        async with open_store(tmp_path / STORE_NAME) as store:
            await store.add_batch(make_batch(total=40))
            for number in range(40):
                made = make_trajectory(f"b-g{number}-t0")
                await store.commit(replace(made, prompt_id=f"p{number}"))

    asyncio.run(fill())
    out = tmp_path / "models"
    result = CliRunner().invoke(
        app, ["predictor", "train", str(tmp_path), "--out", str(out), "--models", "features", "--json"]
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout)["trajectories"] == 40
    with pytest.raises(StoreError, match=re.escape(str(out / STORE_NAME))):
        read_recordings(out)


async def test_a_store_without_endings_says_so(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_NAME):
        pass
    with pytest.raises(InvalidRequest, match="no trajectory"):
        read_recordings(tmp_path)
