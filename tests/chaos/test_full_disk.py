"""A disk that fills up under a running coordinator, for real: a small file system of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def can_mount() -> bool:
    """Whether this machine lets us make a mount namespace."""
    try:
        return (
            subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode == 0
        )
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="no user and mount namespaces here")
def test_a_batch_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    """The store and the event log wait, the operator is told, and nothing is lost."""
    child = Path(__file__).with_name("full_disk_child.py")
    done = subprocess.run(
        [*UNSHARE, sys.executable, child, tmp_path],
        check=False,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert float(done.stdout.splitlines()[-1]) >= 1
    assert b"store.disk_full" in done.stdout + done.stderr
