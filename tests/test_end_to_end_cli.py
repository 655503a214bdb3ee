"""The programs as a newcomer starts them, on the fake engine: run, interrupt, serve, ask, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
from typer.testing import CliRunner, Result

from heddle.cli.commands import app as cli
from heddle.export.files import read_trajectories
from heddle.types import StopReason, TrajectoryStatus
from readme_parts import SERVER, Curl, code_blocks, curls

HEDDLE = (sys.executable, "-m", "heddle")
FAKE = ("--set", "engine.kind=fake", "--set", "engine.pool=1+1")
DEADLINE_S = 60.0
"""For whatever a test waits for; a loaded machine takes a few seconds."""
TASK = '{"environment": "math", "task": {"question": "What is 6 times 7?", "answer": 42}}\n'
WAITING = ("--set", "environments.waiting=waiting_environment:WaitingEnvironment")
QUICK = '{"environment": "waiting", "task": {"seconds": 0}}\n'
ENDLESS = '{"environment": "waiting", "task": {"seconds": 3600}}\n'


def surroundings() -> dict[str, str]:
    """The variables of a program: none of Heddle's own, and the environment of these tests importable."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    return own | {"PYTHONPATH": str(Path(__file__).parent)}


def run_heddle(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [*HEDDLE, *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, env=surroundings()
    )


def wait_for_line(stream: Any, wanted: str) -> str:
    """The first line that holds ``wanted``; the test's own timeout is the deadline."""
    for line in stream:
        if wanted in line:
            return str(line)
    raise AssertionError(f"the program ended without saying {wanted!r}")


def wait_until_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of ``processes`` that are still there at the deadline."""
    return psutil.wait_procs(processes, timeout=DEADLINE_S)[1]


def test_run_writes_every_trajectory_and_nothing_but_json(tmp_path: Path) -> None:
    """Two prompts, three samples: six records, a summary that counts them, progress on stderr."""
    out = tmp_path / "out.jsonl"
    options = ("--out", out, "--samples", "3", "--max-steps", "3", "--data-dir", tmp_path / "data", "--json")
    result = run_heddle("run", "-", *options, *FAKE, stdin=TASK * 2)
    assert (result.returncode, result.stderr != "") == (0, True), result.stderr
    summary = orjson.loads(result.stdout)
    records = list(read_trajectories(out))
    assert (summary["trajectories"], len(records)) == (6, 6)
    assert summary["sampled_tokens"] == sum(record.sampled_tokens for record in records)
    assert summary["by_status"] == Counter(record.status.value for record in records)
    assert summary["files"] == {"trajectories": str(out), "data_dir": str(tmp_path / "data")}


def test_the_event_log_of_a_run_replays_equal(tmp_path: Path) -> None:
    """What the coordinator decided can be decided again."""
    data = tmp_path / "data"
    options = ("--out", tmp_path / "out.jsonl", "--samples", "4", "--max-steps", "2", "--data-dir", data)
    assert run_heddle("run", "-", *options, *FAKE, stdin=TASK).returncode == 0
    (log,) = (data / "events").glob("*.jsonl")
    result = CliRunner().invoke(cli, ["replay", str(log), "--json"])
    assert (result.exit_code, orjson.loads(result.stdout)["equal"]) == (0, True)


def test_a_wrong_task_is_told_by_its_line(tmp_path: Path) -> None:
    """The environment's own complaint, at the line of the file that caused it."""
    out = tmp_path / "out.jsonl"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(TASK + '\n{"environment": "math", "task": {"question": 3}}\n')
    result = run_heddle("run", tasks, "--out", out, "--data-dir", tmp_path / "data", *FAKE)
    assert result.returncode == 2
    assert f"{tasks}:3: task.question" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has_and_leaves_nothing_running(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    """Every trajectory has a record, the open ones as cancelled; exit code 1; no process is left."""
    out = tmp_path / "out.jsonl"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(QUICK + ENDLESS)
    options = ["--out", str(out), "--samples", "4", "--data-dir", str(tmp_path / "data"), *FAKE, *WAITING]
    with subprocess.Popen(
        [*HEDDLE, "run", str(tasks), *options, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(),
    ) as process:
        wait_for_line(process.stderr, "trajectories finished")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal_number)
        printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert orjson.loads(printed)["cancelled"]
    records = list(read_trajectories(out))
    assert len({record.trajectory_id for record in records}) == len(records) == 8
    endless = [record for record in records if record.prompt_id == "p1"]
    assert {record.stop_reason for record in endless} == {StopReason.CANCELLED}
    assert wait_until_gone(children) == []


@dataclass(frozen=True, slots=True)
class Running:
    """A server of its own process."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def serving(data_dir: Path) -> Iterator[Running]:
    """A server on the fake engine and a free port; stopped gracefully at the end."""
    with subprocess.Popen(
        [*HEDDLE, "serve", "--port", "0", "--data-dir", str(data_dir), "--json", *FAKE, *WAITING],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=surroundings(),
    ) as process:
        try:
            assert process.stdout is not None
            started = orjson.loads(process.stdout.readline())
            wait_until_ready(started["url"])
            yield Running(started["url"], process)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that only talk to it; each uses batches of its own."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def wait_until_ready(url: str) -> None:
    """Until a worker can generate."""
    deadline = time.monotonic() + DEADLINE_S
    while httpx.get(f"{url}/readyz").status_code != 200:
        assert time.monotonic() < deadline, "no worker became ready"
        time.sleep(0.05)


def send(server: Running, curl: Curl) -> httpx.Response:
    """What curl would send; of an event stream only its head."""
    content = curl.body.encode() if curl.body is not None else None
    with httpx.stream(
        curl.method, server.url + curl.path, headers=curl.headers, content=content, timeout=DEADLINE_S
    ) as response:
        if "event-stream" not in response.headers["Content-Type"]:
            response.read()
    return response


def test_the_requests_of_the_readme_work_in_their_order(server: Running) -> None:
    """Submit, look, long poll, NDJSON, events, explain, cancel: as a newcomer types them."""
    submit, look, poll, lines, events, explain, cancel = [send(server, curl) for curl in curls()]
    assert submit.status_code == 201
    assert (look.json()["batch_id"], look.json()["total"]) == ("first", 8)
    page = poll.json()
    assert len(page["trajectories"]) >= 1
    assert {record["batch_id"] for record in page["trajectories"]} == {"first"}
    records = [orjson.loads(line) for line in lines.content.splitlines()]
    assert {record["trajectory_id"] for record in page["trajectories"]} <= {
        record["trajectory_id"] for record in records
    }
    assert (events.status_code, explain.status_code, cancel.status_code) == (200, 200, 200)
    assert explain.json()["trajectory_id"] == "first-g0-t0"


def test_the_python_snippet_of_the_readme_works(server: Running) -> None:
    """It prints one line for each of its four trajectories."""
    (snippet,) = code_blocks("python")
    program = snippet.replace(SERVER, server.url)
    assert server.url in program
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert len(printed.stdout.splitlines()) == 4


def ask(server: Running, *arguments: str | Path) -> Result:
    """Run a client's command in this process."""
    return CliRunner().invoke(cli, [*map(str, arguments), "--url", server.url])


def test_the_commands_of_a_client_work(server: Running, tmp_path: Path) -> None:
    """Submit, follow to the end, look, and cancel what is over already."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(TASK)
    submitted = ask(server, "submit", tasks, "--samples", "2", "--batch-id", "mine", "--json")
    assert orjson.loads(submitted.stdout)["total"] == 2
    watched = [orjson.loads(line) for line in ask(server, "watch", "mine", "--json").stdout.splitlines()]
    assert (watched[-1]["name"], watched[-1]["data"]["finished"]) == ("status", 2)
    assert "2/2" in ask(server, "watch", "mine").stdout
    assert "2/2" in ask(server, "status", "mine").stdout
    everything = orjson.loads(ask(server, "status", "--json").stdout)
    assert "mine" in [batch["batch_id"] for batch in everything["batches"]]
    assert [worker["phase"] for worker in everything["workers"]] == ["ready", "ready"]
    assert ask(server, "cancel", "mine").exit_code == 0


def test_what_a_server_refuses_is_told(server: Running, tmp_path: Path) -> None:
    """A task by its line, an unknown batch by its id."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(TASK + '{"environment": "chess", "task": {}}\n')
    refused = ask(server, "submit", tasks)
    assert (refused.exit_code, f"{tasks}:2: environment" in refused.stderr) == (2, True)
    for command in ("status", "watch", "cancel"):
        unknown = ask(server, command, "absent", "--json")
        assert (unknown.exit_code, "absent" in orjson.loads(unknown.stdout)["error"]["message"]) == (1, True)


def test_cancel_ends_a_running_batch(server: Running, tmp_path: Path) -> None:
    """All of its trajectories end, and the server goes on."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(ENDLESS)
    assert ask(server, "submit", tasks, "--batch-id", "long").exit_code == 0
    assert ask(server, "cancel", "long").exit_code == 0
    last = ask(server, "watch", "long", "--json").stdout.splitlines()[-1]
    assert orjson.loads(last)["data"]["by_status"] == {TrajectoryStatus.ABORTED.value: 1}


def test_the_server_stops_gracefully(tmp_path: Path) -> None:
    """SIGTERM in the middle of a batch: exit code 0, a last word, and nothing left of it."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(ENDLESS)
    with serving(tmp_path / "data") as server:
        assert ask(server, "submit", tasks).exit_code == 0
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.terminate()
        assert server.process.wait(DEADLINE_S) == 0
        assert server.process.stdout is not None
        assert orjson.loads(server.process.stdout.read()) == {"event": "stopped"}
        assert wait_until_gone(children) == []


def test_a_server_that_is_not_there_is_told() -> None:
    """Exit code 1 after a few seconds, and a sentence."""
    nobody = CliRunner().invoke(cli, ["status", "--url", "http://127.0.0.1:9", "--json"])
    assert nobody.exit_code == 1
    assert "does not answer" in orjson.loads(nobody.stdout)["error"]["message"]
    assert CliRunner().invoke(cli, ["status", "--url", "nowhere"]).exit_code == 2
