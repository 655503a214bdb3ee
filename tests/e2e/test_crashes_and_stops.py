"""How a server ends, by force and by request: what is gone with it, what is kept, and what goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import orjson
import pytest
from record_checks import assert_each_once, assert_sound, assert_token_exact
from server_process import (
    Server,
    batch_of,
    eventually,
    gated_prompt,
    is_gone,
    prompts,
    replays_equal,
    serving,
    wait_until_gone,
)

from heddle.control.commands import Generate
from heddle.eventlog import read_event_log
from heddle.records import decode_trajectory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Figures: TypeAlias = Callable[[str, object], None]
"""Takes what was measured into the report of the tests (``--junitxml``)."""

GONE_WITHIN_S = 10.0
"""From ``kill -9`` of the coordinator to the end of everything below it."""
STOPPED_WITHIN_S = 30.0
"""From a signal to the exit of a server in the middle of a batch; a quiet machine needs a second or two."""


def start_mixed_work(server: Server, gate: Path) -> None:
    """A batch of which two trajectories have finished, two sit in the sandbox, and others generate."""
    ended = gate.parent
    work = [gated_prompt(gate), gated_prompt(ended), *prompts("guess", each=2)]
    batch = batch_of("work", work, samples=2, max_tokens_per_step=24)
    assert server.submit(batch).status_code == 201
    eventually(lambda: server.batch("work")["finished"] >= 2, "two finished trajectories")
    eventually(lambda: len(server.sandboxes()) >= 2, "two programs")


def test_a_killed_coordinator_keeps_what_its_predictor_had_learned(tmp_path: Path) -> None:
    """``kill -9`` after a batch: the next process predicts from the first step of its first batch."""
    data_dir, learning = tmp_path / "data", "decisions.predictor=progressive"
    saved = data_dir / "predictors" / "progressive.json"
    work = prompts("guess", each=2)
    with serving(data_dir, learning) as server:
        assert server.submit(batch_of("work", work, samples=4, max_tokens_per_step=24)).status_code == 201
        cold = server.collect("work")
        eventually(saved.exists, "the saved state")
        wait_until_gone(server.kill(), GONE_WITHIN_S)
    assert not any(p.made_after_step == 0 for record in cold for p in record.predictions)

    with serving(data_dir, learning) as anew:
        assert anew.submit(batch_of("more", work, max_tokens_per_step=24)).status_code == 201
        warm = anew.collect("more")
    assert all(record.predictions[0].made_after_step == 0 for record in warm)
    assert all(replays_equal(log) for log in anew.event_logs())


def test_a_killed_coordinator_takes_its_processes_along_and_goes_on_when_started_anew(
    tmp_path: Path, record_testsuite_property: Figures
) -> None:
    """``kill -9``: nothing stays running; what had finished is unchanged; the rest finishes."""
    gate, data_dir = tmp_path / "gate", tmp_path / "data"
    with serving(data_dir) as server:
        start_mixed_work(server, gate)
        before = server.finished_lines("work")
        finished = {decode_trajectory(line).trajectory_id for line in before}
        engines = server.engines()
        below = server.kill()
        took_s = wait_until_gone([*engines, *below], GONE_WITHIN_S)
        record_testsuite_property("gone_after_kill_of_coordinator_s", took_s)

    gate.touch()
    with serving(data_dir) as anew:
        records = anew.collect("work")
        assert anew.finished_lines("work")[: len(before)] == before
        assert_each_once(records, "work", prompts=4, samples=2)
        for record in records:
            assert record.failure is None
            assert_token_exact(record)
            assert_sound(record)
        owners = {path.name.partition("-")[0] for path in (data_dir / "sandboxes").iterdir()}
        assert owners <= {str(anew.process.pid)}
    first, second = anew.event_logs()
    assert replays_equal(first)
    assert replays_equal(second)
    assert generated_again(second).isdisjoint({"work-g0-t0", "work-g0-t1", *finished})


def generated_again(log: Path) -> set[str]:
    """The trajectories for which a generation was ordered."""
    commands = (command for entry in read_event_log(log).entries for command in entry.commands)
    return {command.trajectory_id for command in commands if isinstance(command, Generate)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_server_in_the_middle_of_a_batch(
    number: signal.Signals, tmp_path: Path, record_testsuite_property: Figures
) -> None:
    """Exit code 0 in bounded time, no process left, and a log that replays."""
    with serving(tmp_path / "data") as server:
        start_mixed_work(server, tmp_path / "gate")
        below = server.descendants()
        began_at = time.monotonic()
        with server.http.stream("GET", "/v1/events"):  # whoever still listens must not hold it up
            os.killpg(server.process.pid, number)  # a terminal's ctrl-C goes to the whole group
            assert server.process.wait(STOPPED_WITHIN_S) == 0
        record_testsuite_property(f"stopped_after_{number.name}_s", time.monotonic() - began_at)
        assert [process for process in below if not is_gone(process)] == []
        assert server.process.stdout is not None
        assert orjson.loads(server.process.stdout.read()) == {"event": "stopped"}
    [log] = server.event_logs()
    assert replays_equal(log)
