"""The README is true: its requests, its snippets and its tables are taken out of it and tried."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest
from pydantic import BaseModel, SecretStr
from typer.testing import CliRunner

from heddle.api.schemas import BatchRequest
from heddle.cli.commands import app as cli
from heddle.config import HeddleConfig
from readme_parts import README, code_blocks, curls, shell_commands


def config_defaults(model: BaseModel, prefix: str = "") -> dict[str, str]:
    """Every key of the configuration with its default as the table writes it."""
    keys: dict[str, str] = {}
    for name in type(model).model_fields:
        value = dict(model)[name]
        if isinstance(value, BaseModel):
            keys |= config_defaults(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):
            keys[prefix + name] = "" if value is None or isinstance(value, SecretStr) else str(value)
    return keys


def test_the_table_lists_every_key_and_its_default() -> None:
    """A new setting is not documented until it stands here."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| (?:`([^`]*)`)? ?\| ", README, re.MULTILINE)
    assert {key: default for key, default in rows if "." in key or key in HeddleConfig.model_fields} == (
        config_defaults(HeddleConfig())
    )


def test_every_extra_is_named() -> None:
    """An extra that nobody is told of is installed by nobody."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    sentence = README[README.index("Extras: ") :].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z]+)`", sentence)) == sorted(project["project"]["optional-dependencies"])


def test_the_submitted_batch_is_a_valid_one() -> None:
    """What a newcomer copies is accepted."""
    (body,) = [curl.body for curl in curls() if curl.body is not None]
    request = BatchRequest.model_validate_json(body)
    assert (request.batch_id, len(request.prompts), request.samples_per_prompt) == ("first", 2, 4)


def test_every_request_is_shown_once() -> None:
    """Submit, progress, long poll, NDJSON, events, explain, cancel."""
    assert [(curl.method, urlsplit(curl.path).path) for curl in curls()] == [
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/first"),
        ("GET", "/v1/batches/first/trajectories"),
        ("GET", "/v1/batches/first/trajectories"),
        ("GET", "/v1/events"),
        ("GET", "/v1/trajectories/first-g0-t0/explain"),
        ("DELETE", "/v1/batches/first"),
    ]


def test_every_heddle_command_and_option_exists() -> None:
    """Those of the shell blocks and those within the text."""
    typed = [command[1:] for command in shell_commands() if command[0] == "heddle"]
    typed += [shlex.split(text)[1:] for text in re.findall(r"`(heddle [^`]+)`", README)]
    assert len(typed) >= 8
    for name, *rest in typed:
        described = CliRunner().invoke(cli, [name, "--help"], env={"COLUMNS": "200"})
        assert described.exit_code == 0, name
        options = {word for word in rest if word.startswith("--")}
        assert {option for option in options if f"{option} " not in described.stdout} == set(), name


@pytest.mark.parametrize("snippet", code_blocks("python"))
def test_the_python_snippets_compile(snippet: str) -> None:
    """At the least they are Python; the end-to-end tests run them."""
    compile(snippet, "README.md", "exec")


@pytest.mark.parametrize("block", code_blocks("toml"))
def test_the_toml_blocks_are_configuration(block: str) -> None:
    """They may be put into heddle.toml as they are."""
    assert HeddleConfig.model_validate(tomllib.loads(block))


def test_json_in_the_submitted_body_needs_no_shell_quoting() -> None:
    """The body stands between single quotes, so it may hold none."""
    (body,) = [curl.body for curl in curls() if curl.body is not None]
    assert orjson.loads(body)["prompts"][0]["task"]["answer"] == 42
