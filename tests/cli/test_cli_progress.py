"""Progress in words, and where logs go."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from cli_builders import make_status
from rich.console import Console

from heddle.cli.logs import log_to_file
from heddle.cli.progress import LineProgress, describe
from heddle.config import HeddleConfig
from heddle.errors import ConfigError


def test_a_running_batch_in_words() -> None:
    """Phases, tokens, rate by the clock, and what is left."""
    status = replace(make_status(total=8, finished=2), eta_s=12.4)
    assert describe(status, now=102.0) == "6 generating, 6 tokens, 3/s, about 12 s left"


def test_a_finished_batch_in_words() -> None:
    """The rate is over its own time, not over the time since."""
    status = make_status(total=2, finished=2, finished_at=103.0)
    assert describe(status, now=9999.0) == "6 tokens, 2/s"


def test_a_log_gets_one_line_now_and_then() -> None:
    """Neither every update, nor the end twice."""
    stream = io.StringIO()
    progress = LineProgress(Console(file=stream, width=200))
    for finished in (0, 1, 1, 2, 2):
        progress.update(make_status(finished=finished))
    lines = stream.getvalue().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0/2", "2/2"]


def test_a_run_logs_into_its_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it reaches the terminal, and libraries speak only of trouble."""
    config = HeddleConfig(data_dir=tmp_path / "data")
    with log_to_file(config) as path:
        structlog.get_logger().info("worker.ready", worker_id="w0")
        structlog.get_logger().debug("not.this")
        logging.getLogger("library").setLevel(logging.DEBUG)
        logging.getLogger("library").debug("nor this")
    text = path.read_text("utf-8")
    assert "worker.ready" in text
    assert "this" not in text
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    """The data directory is a file."""
    blocker = tmp_path / "data"
    blocker.write_text("x")
    with pytest.raises(ConfigError, match="data_dir"), log_to_file(HeddleConfig(data_dir=blocker)):
        pass
