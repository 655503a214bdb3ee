"""A sandbox in each mode that works on this machine, and the check that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandbox_tools import available_modes, make_sandbox

from heddle.tools.sandbox import Isolation, PythonSandbox, detect_isolation


@pytest.fixture(scope="session", params=available_modes())
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Each working mode in turn."""
    return detect_isolation(request.param)


@pytest.fixture
async def sandbox(isolation: Isolation, tmp_path: Path) -> AsyncIterator[PythonSandbox]:
    """A sandbox with small limits; no run may leave a directory, closing leaves an empty root."""
    root = tmp_path / "sandboxes"
    backend = make_sandbox(isolation, root)

    yield backend

    assert list(root.glob("*/*")) == []
    await backend.close()
    assert list(root.glob("*")) == []
