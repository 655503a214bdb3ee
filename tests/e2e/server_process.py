"""A ``heddle serve`` of its own process on the real engine, and what can be seen of it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import orjson
import psutil

from heddle.environments.taskfiles import load_tasks
from heddle.records import Trajectory, decode_trajectory
from heddle.types import Json

HEDDLE = (sys.executable, "-m", "heddle")
POOL = "1+1"
DEADLINE_S = 240.0
"""For whatever a test waits for. A quiet machine needs seconds; a busy one must not fail a test."""
MAX_BODY_BYTES = 1 << 20
POLL_S = 0.02


def surroundings() -> dict[str, str]:
    """The variables of a program: of Heddle's own only where the model lies; these tests importable."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEDDLE_") or name == "HEDDLE_CACHE_DIR"
    }
    return own | {"PYTHONPATH": str(Path(__file__).parent)}


def eventually(condition: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> float:
    """Wait until the condition holds; returns the seconds that it took."""
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() - began_at < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - began_at


def is_gone(process: psutil.Process) -> bool:
    """Ended; whether its parent has taken notice does not matter."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: Sequence[psutil.Process], within_s: float) -> float:
    """Seconds until all have ended."""
    return eventually(lambda: all(map(is_gone, processes)), f"the end of {processes}", within_s)


@dataclass(slots=True)
class Server:
    """A running server. Everything but ``process`` and ``data_dir`` is asked over REST."""

    url: str
    process: subprocess.Popen[bytes]
    data_dir: Path
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    def submit(self, batch: dict[str, Json]) -> httpx.Response:
        return self.http.post("/v1/batches", json=batch)

    def get(self, path: str) -> Any:
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def batch(self, batch_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get(f"/v1/batches/{batch_id}")
        return status

    def batch_ids(self) -> list[str]:
        return [batch["batch_id"] for batch in self.get("/v1/batches")["batches"]]

    def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = self.get("/v1/workers")["workers"]
        return workers

    def running(self) -> int:
        """Generations that hold a slot."""
        return sum(worker["running"] for worker in self.workers())

    def finished_lines(self, batch_id: str) -> list[bytes]:
        """What is finished now, as stored."""
        headers = {"Accept": "application/x-ndjson"}
        page = self.http.get(f"/v1/batches/{batch_id}/trajectories?limit=1000", headers=headers)
        return page.content.splitlines()

    def collect(self, batch_id: str) -> list[Trajectory]:
        """Every record of a batch, when it is over."""
        eventually(lambda: self.batch(batch_id)["state"] != "running", f"the end of {batch_id}")
        return [decode_trajectory(line) for line in self.finished_lines(batch_id)]

    def engines(self) -> list[psutil.Process]:
        """The processes of the workers that are up."""
        return [psutil.Process(worker["pid"]) for worker in self.workers() if worker["pid"] is not None]

    def descendants(self) -> list[psutil.Process]:
        """Every process below the server."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def sandboxes(self) -> list[psutil.Process]:
        """The server's children but its engines: one for each program that runs."""
        engines = {engine.pid for engine in self.engines()}
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if child.pid not in engines]

    def event_logs(self) -> list[Path]:
        """One for each start on this data directory, oldest first."""
        return sorted((self.data_dir / "events").glob("*.jsonl"))

    def kill(self) -> list[psutil.Process]:
        """``kill -9``; returns all that was below the server in the moment of its death."""
        self.process.send_signal(signal.SIGSTOP)  # so that it starts nothing after we have looked
        below = self.descendants()
        self.process.kill()
        return below


@contextmanager
def serving(data_dir: Path, *options: str, ready_within_s: float = DEADLINE_S) -> Iterator[Server]:
    """A server with every worker ready; whatever happens, it has ended afterwards."""
    command = [*HEDDLE, "serve", "--port", "0", "--data-dir", str(data_dir), "--pool", POOL, "--json"]
    settings = ("environments.gated=gated_environment:GatedEnvironment", *options)
    command += [word for setting in settings for word in ("--set", setting)]
    with (
        (data_dir.parent / f"{data_dir.name}.stderr").open("ab") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=surroundings(), start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            server = Server(orjson.loads(process.stdout.readline())["url"], process, data_dir)
            with server.http:
                eventually(
                    lambda: {worker["phase"] for worker in server.workers()} == {"ready"},
                    "all workers ready",
                    ready_within_s,
                )
                yield server
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()


Prompt: TypeAlias = dict[str, Json]


def prompts(*environments: str, each: int = 1) -> list[Prompt]:
    """The first shipped tasks of each environment, as prompts of a batch."""
    return [entry.as_prompt() for name in environments for entry in load_tasks(name, limit=each)]


def gated_prompt(gate: Path) -> Prompt:
    """A trajectory of one step; it stays in its sandbox where ``gate`` does not exist."""
    return {"environment": "gated", "task": {"gate": str(gate)}}


def batch_of(
    batch_id: str,
    prompts: Sequence[Prompt],
    *,
    samples: int = 1,
    constrained: bool = True,
    max_steps: int = 3,
    max_tokens_per_step: int = 48,
) -> dict[str, Json]:
    """A small batch, seeded."""
    return {
        "batch_id": batch_id,
        "prompts": [*prompts],
        "samples_per_prompt": samples,
        "sampling": {"seed": 7},
        "limits": {
            "max_steps": max_steps,
            "max_tokens": max_steps * max_tokens_per_step,
            "max_tokens_per_step": max_tokens_per_step,
        },
        "tools": {"constrained": constrained},
    }


def run_heddle(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [*HEDDLE, *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, env=surroundings()
    )


def replays_equal(log: Path) -> bool:
    """Whether ``heddle replay`` gets the same commands, byte for byte."""
    result = run_heddle("replay", log, "--json")
    return result.returncode == 0 and orjson.loads(result.stdout)["equal"] is True
