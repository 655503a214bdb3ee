"""``heddle serve`` with real SGLang servers: the main job, new weights, a crash, another pool, the end.

They run where ``HEDDLE_TEST_SGLANG_JOB`` is set, because servers on a CPU take minutes to start. They share
one server and build on each other, in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from record_checks import RecordJudge, assert_each_once, by_environment
from server_process import Server, batch_of, eventually, prompts, serving, wait_until_gone
from sglang_servers import ROOT, free_port, real_kind

from heddle.engines.embedded.model import ensure_model
from heddle.environments.registry import build_registry
from heddle.records import Trajectory
from heddle.text.tokenizer import load_tokenizer
from heddle.types import Message

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "HEDDLE_TEST_SGLANG_JOB" not in os.environ,
        reason="REAL SGLANG WORKERS NOT TESTED: set HEDDLE_TEST_SGLANG_JOB=1 to spend some minutes on them",
    ),
]

SLOTS = 4
ARGUMENTS = (
    *("--attention-backend", "torch_native", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--dtype", "float32", "--max-total-tokens", "16384"),
)
"""What SGLang needs on a plain CPU."""

SAMPLES = 2
READY_S = 600.0
"""For a server to come up: half a minute on a quiet machine, many times that on a busy one."""
TEXTS = ["", "Hello, world!", "  two  spaces\n\nand\ttabs", "naïve café 漢字 🙂", "x = [1, 2.5e-3]  # 12345"]


@pytest.fixture(scope="module")
def home() -> Path:
    """Where SGLang is installed."""
    return Path(real_kind().command[0]).parent


@pytest.fixture(scope="module")
def models(home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of random weights, which differ in nothing else, under a real tokenizer."""
    source = ensure_model("smollm2-135m-instruct")
    directories = [tmp_path_factory.mktemp("models") / name for name in ("first", "second")]
    for seed, directory in enumerate(directories):
        script = [home / "venv" / "bin" / "python", ROOT / "scripts" / "sglang_cpu" / "models.py"]
        subprocess.run([*script, "chat", directory, source, str(seed)], check=True, timeout=600)
        source = directory  # its tokenizer is quicker to read than a GGUF file's
    return directories


@pytest.fixture(scope="module")
def server(home: Path, models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers of degree 1."""
    environment = {"PYTHONPATH": str(home / "shim"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
    settings = {
        "engine.kind": "sglang",
        "engine.model": str(models[0]),
        "engine.slots": SLOTS,
        "engine.sglang.device": "cpu",
        "engine.sglang.gpus": "0-1",
        "engine.sglang.base_port": min(free_port(), 60000),
        "engine.sglang.command": [str(home / "venv/bin/python"), "-m", "sglang.launch_server"],
        "engine.sglang.extra_args": list(ARGUMENTS),
    }
    options = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    options.append(f"engine.sglang.environment={{{pairs}}}")
    data_dir = tmp_path_factory.mktemp("sglang") / "data"
    with serving(data_dir, *options, ready_within_s=READY_S) as up:
        yield up


@pytest.fixture(scope="module")
def judge(models: list[Path]) -> RecordJudge:
    """With the tokenizer from the model's directory, loaded apart from the server."""
    return RecordJudge(load_tokenizer(models[0]), build_registry({}))


def versions(records: list[Trajectory]) -> set[int]:
    """Every weight version that sampled a token."""
    return {version for record in records for version in record.weight_versions}


def long_batch(batch_id: str) -> dict[str, Any]:
    """A batch that is still generating some seconds later."""
    return batch_of(
        batch_id,
        prompts("math", each=4),
        samples=SAMPLES,
        constrained=False,
        max_steps=2,
        max_tokens_per_step=400,
    )


def start(server: Server, batch_id: str) -> None:
    """Submit a long batch and wait until every server is in the middle of generating for it."""
    before = decoding_steps(server)
    assert server.submit(long_batch(batch_id)).status_code == 201
    eventually(
        lambda: all(now > then + 15 for now, then in zip(decoding_steps(server), before, strict=True)),
        "some tokens of every server",
    )


def decoding_steps(server: Server) -> list[float]:
    """How many steps each SGLang server has decoded, as it counts them itself."""
    steps = []
    for worker in server.workers():
        (load,) = httpx.get(f"{worker['url']}/v1/loads?include=core", timeout=30).json()["loads"]
        steps.append((load["decode_moments"] or [0.0])[0])
    return steps


def test_text_becomes_the_ids_that_transformers_makes_of_it(home: Path, models: list[Path]) -> None:
    """Plain text, and a conversation by the model's own template."""
    messages = [
        ("system", "Be brief."),
        ("user", "What is 6 * 7?"),
        ("assistant", "42"),
        ("user", "Sure?"),
    ]
    script = (
        "import json, sys, transformers\n"
        "tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "asked = json.load(sys.stdin)\n"
        "texts = [tokenizer.encode(text, add_special_tokens=False) for text in asked['texts']]\n"
        "chat = tokenizer.apply_chat_template(asked['chat'], tokenize=False, add_generation_prompt=True)\n"
        "print(json.dumps([texts, tokenizer.encode(chat, add_special_tokens=False)]))\n"
    )
    chat = [{"role": role, "content": content} for role, content in messages]
    told = subprocess.run(
        [home / "venv" / "bin" / "python", "-c", script, models[0]],
        input=json.dumps({"texts": TEXTS, "chat": chat}),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    texts, conversation = json.loads(told.stdout)
    tokenizer = load_tokenizer(models[0], template="model")
    assert [tokenizer.encode(text) for text in TEXTS] == texts
    rendered = tokenizer.render([Message(role, content) for role, content in messages], ())  # type: ignore[arg-type]
    assert rendered == conversation


def test_two_servers_run_the_main_job(server: Server, judge: RecordJudge) -> None:
    """Three environments, real tools, constrained calls: every check of a record holds, on both servers."""
    batch = batch_of("job", prompts("math", "code", "search", each=2), samples=SAMPLES)
    assert server.submit(batch).status_code == 201
    records = server.collect("job")
    assert_each_once(records, "job", prompts=6, samples=SAMPLES)
    assert by_environment(records) == {"code": 4, "math": 4, "search": 4}
    for record in records:
        judge.check(record)
    assert {step.worker_id for record in records for step in record.steps} == {"w0", "w1"}
    assert {step.constrained for record in records for step in record.steps} == {True}
    assert sum(step.cached_tokens for record in records for step in record.steps) > 0
    assert versions(records) == {0}


def test_the_pace_of_the_servers_is_known(server: Server) -> None:
    """From the moments that they count, without a profiling run."""
    eventually(lambda: all(worker["step_base_s"] is not None for worker in server.workers()), "lines")
    metrics = server.http.get("/metrics").text
    assert 'heddle_worker_step_base_seconds{worker="w0"}' in metrics


def test_new_weights_reach_open_trajectories(server: Server, judge: RecordJudge, models: list[Path]) -> None:
    """Each token says whose it is; a directory that is none leaves all with what they have."""
    start(server, "renewed")
    update = {"version": 1, "path": str(models[1])}
    answers = [server.http.post("/v1/weights", json=update) for _ in range(2)]
    assert [answer.json()["status"] for answer in answers] == ["updated", "unchanged"]
    refused = server.http.post("/v1/weights", json={"version": 2, "path": str(models[1] / "none")})
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "engine_failed")
    assert [worker["weight_version"] for worker in server.workers()] == [1, 1]
    records = server.collect("renewed")
    assert versions(records) == {0, 1}
    for record in records:
        judge.check(record)


def test_a_server_that_is_killed_comes_back_with_the_weights_that_serve(
    server: Server, judge: RecordJudge
) -> None:
    """Its trajectories go on elsewhere meanwhile; none of its processes holds on to anything."""
    start(server, "bereaved")
    victim = server.engines()[0]
    family = [victim, *victim.children(recursive=True)]
    os.kill(victim.pid, signal.SIGKILL)
    wait_until_gone(family, within_s=30)
    records = server.collect("bereaved")
    assert_each_once(records, "bereaved", prompts=4, samples=SAMPLES)
    for record in records:
        judge.check(record)
    assert versions(records) == {1}
    eventually(
        lambda: [worker["phase"] for worker in server.workers()] == ["ready", "ready"], "a restart", READY_S
    )
    first = server.workers()[0]
    assert (first["restarts"], first["weight_version"], first["withheld"]) == (1, 1, None)


def test_the_pool_becomes_one_worker_of_two_ranks(server: Server, judge: RecordJudge) -> None:
    """The servers of one rank finish and go; what they held is the new one's."""
    before = server.engines()
    served = {worker["weight_version"] for worker in server.workers()}
    changed = server.http.put("/v1/pool", json={"pool": "2"})
    assert changed.status_code == 200, changed.text
    batch = batch_of("moved", prompts("math", "search", each=2), samples=SAMPLES)
    assert server.submit(batch).status_code == 201
    eventually(lambda: server.workers()[-1]["phase"] == "ready", "the new worker", READY_S)
    records = server.collect("moved")
    for record in records:
        judge.check(record)
    assert {(step.worker_id, step.tp_degree) for r in records for step in r.steps} == {("w2", 2)}
    assert versions(records) == served
    wait_until_gone(before, within_s=60)
    assert [worker["worker_id"] for worker in server.workers()] == ["w2"]


def test_nothing_survives_a_heddle_that_is_killed(server: Server) -> None:
    """Neither a server nor one of its ranks."""
    below = server.kill()
    assert len(below) >= 3
    wait_until_gone(below, within_s=30)
