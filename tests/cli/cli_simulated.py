"""What tests of the commands that simulate share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from typer.testing import Result

PROFILE = (
    "tp,batch,tpot_ms,prefill_tokens_per_s,kv_capacity_tokens\n"
    "1,1,10,5000,20000\n1,8,14,5000,20000\n2,1,6,9000,60000\n2,8,9,9000,60000\n"
)
"""Neither GPU nor model."""
TRACE = [
    {
        "trajectory_id": f"p{index}/{sample}",
        "prompt_id": f"p{index}",
        "steps": [
            {"prompt_tokens": 50, "output_tokens": 20 + 30 * index, "tool_name": "sh", "tool_seconds": 1.0},
            {"prompt_tokens": 10, "output_tokens": 5 + sample, "tool_name": None, "tool_seconds": None},
        ],
    }
    for index in range(6)
    for sample in range(2)
]


def document(result: Result) -> Any:
    """The one document on stdout of a command that succeeded."""
    assert result.exit_code == 0, result.stderr
    return orjson.loads(result.stdout)


def written_trace(folder: Path) -> Path:
    """``TRACE`` as a file: six prompts with two samples each."""
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in TRACE))
    return path


def written_profile(folder: Path) -> Path:
    """``PROFILE`` as a file: degrees 1 and 2."""
    path = folder / "profile.csv"
    path.write_text(PROFILE)
    return path
