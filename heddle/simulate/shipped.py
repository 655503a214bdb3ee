"""The example traces of the package; ``data/README.md`` says where they come from."""

from __future__ import annotations

from importlib import resources

SHIPPED_TRACES = ("coding_agent", "search_agent", "math_agent")


def shipped_trace(name: str) -> bytes:
    """The content of one of :data:`SHIPPED_TRACES`."""
    return resources.files("heddle.simulate").joinpath("data", f"{name}.jsonl").read_bytes()
