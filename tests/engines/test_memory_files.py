"""Directories in memory go with their owner, and with no other."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.engines.memory_files import MemoryDirectory
from heddle.errors import ConfigError

KILLED = (
    "import os, signal, sys; from pathlib import Path; "
    "from heddle.engines.memory_files import MemoryDirectory; "
    "owned = MemoryDirectory(Path(sys.argv[1]), family='ours-'); "
    "(owned.path / 'kv').write_bytes(b'x'); os.kill(os.getpid(), signal.SIGKILL)"
)


def kill_the_owner_of(path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert (path / "kv").is_file()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """Under the same name or another one of the family; what the living own stays."""
    living = MemoryDirectory(tmp_path / "ours-living", family="ours-")
    foreign = tmp_path / "ours-foreign"
    foreign.mkdir()
    kill_the_owner_of(tmp_path / "ours-a")
    kill_the_owner_of(tmp_path / "ours-b")
    again = MemoryDirectory(tmp_path / "ours-b", family="ours-")
    assert not (tmp_path / "ours-a").exists()
    assert not (again.path / "kv").exists()
    assert living.path.is_dir()
    assert foreign.is_dir()


def test_a_directory_has_one_owner_and_goes_with_it(tmp_path: Path) -> None:
    """A second one is refused while the first is held."""
    owned = MemoryDirectory(tmp_path / "ours-a", family="ours-")
    (owned.path / "kv").write_bytes(b"x")
    with pytest.raises(ConfigError, match="in use by another process"):
        MemoryDirectory(tmp_path / "ours-a", family="ours-")
    path = owned.path
    del owned
    gc.collect()
    assert not path.exists()
    assert MemoryDirectory(path, family="ours-").path.is_dir()


def test_a_name_outside_of_its_family_is_a_mistake(tmp_path: Path) -> None:
    """Nobody would ever remove it."""
    with pytest.raises(ValueError, match="not of the family"):
        MemoryDirectory(tmp_path / "theirs", family="ours-")
