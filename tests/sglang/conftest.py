"""One server of each kind for all tests that leave it unharmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sglang_servers import Kind, Server, mock_kind, real_kind

from heddle.engines.sglang.adapter import SGLangEngine, SGLangSettings


@pytest.fixture(scope="session", params=["mock", pytest.param("real", marks=pytest.mark.sglang)])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """Each test runs against both."""
    return mock_kind(tmp_path_factory.mktemp("mock")) if request.param == "mock" else real_kind()


@pytest.fixture(scope="session")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared; a test leaves it idle, unpaused, and with the weights that it found."""
    server = kind.start(tmp_path_factory.mktemp(kind.name) / "shared.log")
    yield server
    server.kill()


@pytest.fixture
def own_server(kind: Kind, tmp_path: Path) -> Iterator[Server]:
    """For a test that ends it."""
    server = kind.start(tmp_path / "own.log")
    yield server
    server.kill()


@pytest_asyncio.fixture
async def engine(server: Server) -> AsyncIterator[SGLangEngine]:
    """The adapter to the shared server, with nothing in its prefix cache."""
    engine = await SGLangEngine.connect(server.url, SGLangSettings(native_priority=True))
    await engine.flush_cache()
    yield engine
    await engine.close()
