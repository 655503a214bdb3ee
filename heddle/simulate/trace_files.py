"""Traces by name: a file, plain or gzipped, standard input, or one that is shipped."""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path

from heddle.errors import InvalidRequest
from heddle.simulate.readers import read_workload
from heddle.simulate.shipped import SHIPPED_TRACES, shipped_trace
from heddle.simulate.workload import Workload

STDIN = "-"
_GZIP = b"\x1f\x8b"


def load_workload(source: str) -> Workload:
    """The workload of a trace. Raises ``InvalidRequest`` with file, line and reason."""
    name = "<stdin>" if source == STDIN else source
    content = read_trace(source)
    return read_workload(content, name=name)


def read_trace(source: str) -> bytes:
    """The content, unpacked. Raises ``InvalidRequest`` for a file that cannot be read."""
    if source in SHIPPED_TRACES and not Path(source).exists():
        return shipped_trace(source)
    name = "<stdin>" if source == STDIN else source
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError as exc:
        shipped = ", ".join(SHIPPED_TRACES)
        raise InvalidRequest(f"no such file, nor one of the shipped traces ({shipped})", path=name) from exc
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise InvalidRequest(f"is damaged gzip: {exc}", path=name) from exc
    except OSError as exc:
        raise InvalidRequest(f"cannot be read: {exc.strerror}", path=name) from exc
