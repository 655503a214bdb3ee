"""What every test gets, without asking."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

settings.register_profile("heddle", deadline=None)  # a busy machine is no reason to fail
settings.load_profile("heddle")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--full`` tries everything of which a fair sample is tried otherwise; it takes an hour."""
    parser.addoption(
        "--full", action="store_true", help="crash points, fault schedules, fuzzing: all of them"
    )


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether everything is to be tried."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(autouse=True)
def _fresh_logging() -> Iterator[None]:
    """A command that ran inside a test leaves no log handler behind: its stream is closed by then."""
    yield
    structlog.reset_defaults()
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
