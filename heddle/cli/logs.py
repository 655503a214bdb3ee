"""Logs of a command: on stderr for a server, in a file for a run. Never on stdout, which carries results."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo

from heddle.config import HeddleConfig
from heddle.errors import ConfigError

RUN_LOG = "coordinator.log"
"""Under the data directory; ``heddle run`` writes there so that its progress bar stays whole."""


def log_to_stderr(config: HeddleConfig) -> None:
    """Log lines for people, from ``config.log_level`` up."""
    _configure(sys.stderr, config, colors=sys.stderr.isatty())


@contextmanager
def log_to_file(config: HeddleConfig) -> Iterator[Path]:
    """Append log lines to a file of the data directory while inside; yields its path."""
    path = config.data_dir / RUN_LOG
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a", encoding="utf-8", buffering=1)
    except OSError as exc:
        raise ConfigError(f"data_dir: {path} cannot be written: {exc.strerror}") from exc
    with stream:
        _configure(stream, config, colors=False)
        try:
            yield path
        finally:
            log_to_stderr(config)


def _without_control_characters(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """Texts from outside neither start a line of the log nor speak to the terminal that shows it."""
    for key, value in entry.items():
        if isinstance(value, str) and not value.isprintable():
            entry[key] = value.encode("unicode_escape").decode()
    return entry


def _plain_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Where it went wrong, and nothing of what variables held: prompts and secrets stay out of the log.

    Indented, so that no message of an exception passes for a line of the log.
    """
    for line in "".join(traceback.format_exception(*exc_info)).splitlines():
        shown = line if line.isprintable() else line.encode("unicode_escape").decode()
        stream.write(f"\n    {shown}")


def _configure(stream: TextIO, config: HeddleConfig, *, colors: bool) -> None:
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_control_characters,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setLevel(max(level, logging.WARNING))  # on the handler: some libraries set levels of their own
    logging.basicConfig(handlers=[handler], force=True)
