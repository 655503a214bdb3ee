"""Workloads from what was recorded: traces of agents, Mooncake traces, Heddle's own event logs.

Pure: they read bytes that somebody else has read from a file. Whatever is wrong with a file is an
``InvalidRequest`` whose path is ``file:line`` and the field; whatever a file does not say is either asked for
or told in the workload's notes, never made up.
"""

from __future__ import annotations

from heddle.simulate.readers.formats import TraceFormat, format_of, read_workload

__all__ = ["TraceFormat", "format_of", "read_workload"]
