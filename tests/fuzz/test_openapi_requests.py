"""Requests drawn from our own OpenAPI document, good and bad, at a real server: every answer is as described.

No 500, no status, type or body that the document does not know, and the server lives. A few hundred requests;
some six thousand with ``--full``. The endless stream of events is left to the tests of streams.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

REQUESTS, ALL_REQUESTS = 12, 220
"""Of each kind, at each operation."""
TIMEOUT_S = 30.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on fake engines, in a process of its own."""
    directory = tmp_path_factory.mktemp("fuzz")
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--data-dir", str(directory / "data")]
    command += ["--pool", "1", "--json", "--set", "engine.kind=fake"]
    with (
        (directory / "stderr").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert process.stdout is not None
            yield orjson.loads(process.stdout.readline())["url"]
            assert process.poll() is None, "the server did not survive"
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)  # before its output is closed, to which it says goodbye
    assert process.returncode == 0
    assert b"Traceback" not in (directory / "stderr").read_bytes()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.timeout(1800)
def test_every_answer_is_as_described(mode: GenerationMode, server: str, full: bool) -> None:
    """Requests as the document allows them, and requests that break it."""
    document = schemathesis.openapi.from_url(f"{server}/openapi.json")
    requests, sent = ALL_REQUESTS if full else REQUESTS, 0
    for found in document.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        takes_something = bool(operation.body or operation.query or operation.path_parameters)
        if operation.path == "/v1/events" or (mode is GenerationMode.NEGATIVE and not takes_something):
            continue
        sent += _send(server, operation.as_strategy(generation_mode=mode), requests)
    assert sent >= 10 * requests


def _send(server: str, cases: SearchStrategy[Case[Any]], requests: int) -> int:
    """Send so many requests; returns their number. Fails at the first answer that is not as described."""
    sent = 0

    @settings(
        max_examples=requests, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases)
    def send(case: Case[Any]) -> None:
        nonlocal sent
        sent += 1
        case.validate_response(case.call(base_url=server, timeout=TIMEOUT_S), checks=CHECKS)

    send()
    return sent
