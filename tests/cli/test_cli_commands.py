"""The commands as they are typed: exit codes, messages, pure JSON on stdout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from cli_builders import make_trajectory
from rich.markup import render
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner, Result

from heddle import __version__
from heddle.cli.commands import app
from heddle.cli.settings import resolve_config
from heddle.control.build import PlaneSettings
from heddle.control.events import DispatchPaused
from heddle.control.log import encode_entry, encode_header
from heddle.errors import ConfigError
from heddle.export.files import export as export_records
from heddle.types import StopReason


def invoke(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def document(result: Result) -> Any:
    """The one JSON document on stdout."""
    return orjson.loads(result.stdout)


def test_the_help_loads_nothing_heavy() -> None:
    """Reading the help is quick because the servers, engines and validators stay unimported."""
    program = (
        "import sys; import heddle.cli.commands; "
        "print(sorted({'pydantic', 'aiohttp', 'httpx', 'numpy', 'structlog'} & set(sys.modules)))"
    )
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert listed.stdout == "[]\n"


def help_texts(command: object) -> Iterator[str]:
    """All that a command and those below it say of themselves and of their options."""
    assert isinstance(command, TyperCommand | TyperGroup)
    yield command.help or ""
    for parameter in command.params:
        if isinstance(parameter, TyperOption | TyperArgument):
            yield parameter.help or ""
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            yield from help_texts(below)


def test_no_help_loses_a_word_to_markup() -> None:
    """The help is rendered as Rich's markup, which takes words in square brackets for styles."""
    texts = list(help_texts(typer.main.get_command(app)))
    assert len(texts) > 150
    assert [text for text in texts if render(text).plain != text] == []


def test_the_version_is_told_either_way() -> None:
    """As a command and as the option that everybody tries first."""
    said = [invoke("version").stdout, invoke("--version").stdout]
    assert said == [f"heddle {__version__}\n"] * 2


@pytest.mark.parametrize("command", [("version",), ("version", "--json"), ("tasks", "math"), ("presets",)])
def test_a_full_disk_behind_stdout_is_one_line_on_stderr(command: tuple[str, ...]) -> None:
    """No traceback, and a code that a script notices."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "heddle", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (ended.returncode, ended.stderr) == (1, "heddle: No space left on device\n")


def test_help_lists_every_command() -> None:
    """The names in the documents are the names of the program."""
    result = invoke("--help")
    assert result.exit_code == 0
    for name in (
        "serve",
        "run",
        "submit",
        "status",
        "watch",
        "cancel",
        "replay",
        "export",
        "tasks",
        "presets",
        "doctor",
    ):
        assert f" {name} " in result.stdout


def test_version() -> None:
    """For people and for programs."""
    assert invoke("version").stdout == f"heddle {__version__}\n"
    assert document(invoke("version", "--json")) == {"version": __version__}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "absent.jsonl", "--out", "x"), "absent.jsonl"),
        (("run", "-", "--out", "x"), "<stdin>"),
        (("run", "-", "--out", "x", "--set", "novalue"), "--set"),
        (("run", "-", "--out", "x", "--set", "engine.slots=0"), "engine.slots"),
        (("run", "-", "--out", "x", "--set", "engine.nonsense=1"), "engine.nonsense"),
        (("run", "-", "--out", "x", "--config", "absent.toml"), "absent.toml"),
        (("serve", "--host", "0.0.0.0"), "server.token"),
        (("serve", "--port", "70000"), "server.port"),
        (("export", "absent.jsonl", "--format", "verl", "--out", "x"), "absent.jsonl"),
    ],
)
def test_bad_input_exits_2_and_names_the_field(
    arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is on stderr; with --json stdout has it as an object."""
    monkeypatch.delenv("HEDDLE_TOKEN", raising=False)
    plain = invoke(*arguments, stdin=b"")
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert named in plain.stderr
    as_json = invoke(*arguments, "--json", stdin=b"")
    assert as_json.exit_code == 2
    error = document(as_json)["error"]
    assert named in f"{error['path']} {error['message']}"


def test_bad_usage_exits_2() -> None:
    """An unknown option, a missing argument, a wrong choice."""
    assert invoke("run", "--nonsense").exit_code == 2
    assert invoke("run").exit_code == 2
    assert invoke("export", "x", "--format", "csv", "--out", "y").exit_code == 2


def test_run_wants_an_existing_folder(tmp_path: Path) -> None:
    """Told before any worker is started."""
    task = b'{"environment": "math", "task": {"question": "1+1", "answer": 2}}\n'
    result = invoke("run", "-", "--out", tmp_path / "absent" / "out.jsonl", stdin=task)
    assert (result.exit_code, "--out" in result.stderr) == (2, True)


def test_shipped_tasks_are_printed_as_a_task_file() -> None:
    """What ``heddle tasks`` prints, ``heddle run`` reads."""
    lines = [
        orjson.loads(line) for line in invoke("tasks", "math", "code", "--limit", "2").stdout.splitlines()
    ]
    assert [line["environment"] for line in lines] == ["math", "math", "code", "code"]
    assert all({"prompt_id", "environment", "task"} == set(line) for line in lines)


def test_export_writes_and_tells_what_was_left_out(tmp_path: Path) -> None:
    """Failed infrastructure is no sample."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    failed = make_trajectory(trajectory_id="b-g0-t1", stop_reason=StopReason.COMPLETED, steps=[])
    export_records([make_trajectory(), failed], source, "jsonl")
    result = document(invoke("export", source, "--format", "slime", "--out", out, "--json"))
    assert (result["written"], result["excluded"]) == (
        1,
        [{"trajectory_id": "b-g0-t1", "reason": "no_response"}],
    )
    assert len(out.read_bytes().splitlines()) == 1


def test_export_does_not_overwrite_its_source(tmp_path: Path) -> None:
    """Reading and writing one file would lose it."""
    source = tmp_path / "in.jsonl"
    export_records([make_trajectory()], source, "jsonl")
    assert invoke("export", source, "--format", "jsonl", "--out", source).exit_code == 2
    assert len(source.read_bytes().splitlines()) == 1


def make_log(path: Path, *lines: bytes) -> Path:
    """An event log of a default control plane."""
    path.write_bytes(b"".join(line + b"\n" for line in (encode_header(PlaneSettings()), *lines)))
    return path


def test_replay_of_a_true_log_is_equal(tmp_path: Path) -> None:
    """Exit code 0, and the counts."""
    log = make_log(tmp_path / "log.jsonl", encode_entry(0, 1.0, DispatchPaused(), ()))
    result = invoke("replay", log, "--json")
    assert result.exit_code == 0
    assert (document(result)["equal"], document(result)["events"]) == (True, 1)
    assert "same byte for byte" in invoke("replay", log).stdout


def test_replay_of_a_false_log_fails_and_shows_where(tmp_path: Path) -> None:
    """A gap in the sequence is the first difference."""
    log = make_log(tmp_path / "log.jsonl", encode_entry(5, 1.0, DispatchPaused(), ()))
    result = invoke("replay", log)
    assert result.exit_code == 1
    assert "differs at event 0 (seq)" in result.stdout


def test_replay_of_something_else_fails(tmp_path: Path) -> None:
    """A file that is no event log is told as such."""
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    result = invoke("replay", other)
    assert (result.exit_code, "not" in result.stderr) == (2, True)


def test_presets_are_printed_and_a_users_own_beside_them(tmp_path: Path) -> None:
    """As TOML for people, as a document for programs; an unknown one is a mistake of the command line."""
    file = tmp_path / "heddle.toml"
    file.write_text('[presets.mine]\nbase = "sticky"\nscheduler = "autellix"\n')

    assert "[presets.verl]" in invoke("presets").stdout
    mine = document(invoke("presets", "mine", "--config", file, "--json"))["mine"]
    assert (mine["scheduler"], mine["placer"]) == ("autellix", "sticky_least_loaded")
    assert invoke("presets", "nobody").exit_code == 2


def test_a_preset_wins_over_the_file_and_loses_to_options(tmp_path: Path) -> None:
    """In the order in which somebody would expect it."""
    file = tmp_path / "heddle.toml"
    file.write_text('[decisions]\nscheduler = "round_robin"\nseed = 5\n[presets.mine]\nbase = "fix8"\n')

    config = resolve_config(file, {"engine.pool": "2"}, ["decisions.kv_guard=false"], "mine")

    decisions = config.decisions
    assert (decisions.scheduler, decisions.seed, decisions.kv_guard) == ("earned", 5, False)
    assert config.engine.pool == "2"
    assert resolve_config(file, {}, [], "mine").engine.pool == "8*"
    with pytest.raises(ConfigError, match="unknown preset 'yours'"):
        resolve_config(file, {}, [], "yours")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ("tasks", "go"),
            "ENVIRONMENT: no shipped tasks for 'go'; there are: code, guess, math, search",
        ),
        (("replay", "/dev/null"), "LOG: /dev/null: not an event log: it has no complete line"),
        (
            ("serve", "--engine", "fake", "--worker", "http://127.0.0.1:1"),
            "--worker: is for SGLang, not for --engine fake",
        ),
        (
            ("serve", "--engine", "embedded", "--gpus", "0"),
            "--gpus: is for SGLang, not for --engine embedded",
        ),
        (("status", "--url", "nope"), "--url: 'nope' is not of the form http://host:port"),
        (("status", "--url", "ftp://x"), "--url: 'ftp://x' is not of the form http://host:port"),
        (("status", "--url", "http://[::1"), "--url: 'http://[::1' is no URL: Invalid port: ':1'"),
        (("status", "--token", "a\nb"), "--token: may hold printable ASCII only"),
        (("status", "--token", "schlüssel"), "--token: may hold printable ASCII only"),
    ],
)
def test_bad_input_is_named_and_exits_2(command: tuple[str, ...], message: str) -> None:
    """As every command says of itself."""
    result = invoke(*command)
    assert (result.exit_code, result.stderr.strip()) == (2, f"heddle: {message}")


SIMULATED = ("simulate", "search_agent", "--gpu", "h100_sxm", "--model", "Qwen3-8B", "--seeds", "1")


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (("tasks", "math"), "--limit", "-1"),
        (SIMULATED, "--seed", "-1"),
        (SIMULATED, "--slots-per-gpu", "1000000000"),
        (SIMULATED, "--cold-start", "nan"),
        (SIMULATED, "--overhead", "inf"),
        (SIMULATED, "--tool-times", "constant:1e308"),
        ((*SIMULATED, "--predictor", "noisy_oracle"), "--predictor-error", "1e308"),
        (SIMULATED, "--plot", "/nowhere/charts.png"),
    ],
)
def test_numbers_that_cannot_be_are_refused(command: tuple[str, ...], option: str, value: str) -> None:
    """At once, rather than by a simulation without an end or a table of nan."""
    result = invoke(*command, option, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr
    assert "Traceback" not in result.stderr
