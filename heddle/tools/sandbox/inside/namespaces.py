"""Namespaces and the new root that a program sees in the ``namespaces`` mode.

A supervisor that is root makes the namespaces as root and leaves the user namespace alone; the program
then becomes an unprivileged user. Anyone else gets a user namespace that maps only themselves. Either way
RLIMIT_NPROC counts for the program: it is not root, and its user (or user namespace) is its own.
"""

from __future__ import annotations

import contextlib
import os

from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .spec import Spec

WORKING_DIRECTORY = "/sandbox"

_ROOT_BYTES = 1 << 20
"""The root holds directories and links only, and is read-only once built."""

_MAX_INODES = 8192
"""Files in the writable file system; an inode costs the host about a kilobyte that size= does not count."""

_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NAMESPACES = (
    sc.CLONE_NEWNS
    | sc.CLONE_NEWPID
    | sc.CLONE_NEWNET
    | sc.CLONE_NEWIPC
    | sc.CLONE_NEWUTS
    | sc.CLONE_NEWCGROUP
)


def leave_the_host() -> None:
    """Enter new namespaces; the next fork is process 1 of the new pid namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        sc.unshare(_NAMESPACES)
        return
    sc.unshare(_NAMESPACES | sc.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def build_root(spec: Spec) -> None:
    """Replace the root of this mount namespace; ends with the working directory as the cwd.

    Must run as process 1: /proc shows the pid namespace of whoever mounts it.
    """
    sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    root = spec["directory"]
    sc.mount("tmpfs", root, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"size={_ROOT_BYTES},mode=0755")
    _devices(root)
    _writable_directories(root, spec["disk_bytes"])
    for path in spec["visible"]:  # after /tmp, which an interpreter may lie below
        _show(root, path)
    for name in _SYSTEM_LINKS:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
    os.mkdir(f"{root}/proc")
    with contextlib.suppress(PermissionError):  # a container that masks parts of /proc forbids a fresh one
        sc.mount("proc", f"{root}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    os.chdir(root)
    sc.pivot_root_here()
    sc.mount("none", "/", flags=sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV)
    os.chdir(WORKING_DIRECTORY)


def _show(root: str, path: str) -> None:
    """Bind a host file or directory read-only at the same place below ``root``."""
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")
    sc.mount(path, target, flags=sc.MS_BIND)
    # A user namespace may not clear flags that the host set on the mount, so keep them.
    flags = sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        flags |= sc.MS_NOEXEC
    sc.mount("none", target, flags=flags)


def _devices(root: str) -> None:
    os.mkdir(f"{root}/dev")
    for name in _DEVICES:
        _write(f"{root}/dev/{name}", "")
        sc.mount(f"/dev/{name}", f"{root}/dev/{name}", flags=sc.MS_BIND)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")


def _writable_directories(root: str, size_bytes: int) -> None:
    """The working directory, /tmp and /dev/shm, in one file system so that one size bounds them all."""
    store = f"{root}/.store"
    os.mkdir(store)
    options = f"size={size_bytes},nr_inodes={_MAX_INODES},mode=0755"
    sc.mount("tmpfs", store, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
    for name, place in (("work", WORKING_DIRECTORY), ("tmp", "/tmp"), ("shm", "/dev/shm")):
        os.mkdir(f"{store}/{name}")
        os.chmod(f"{store}/{name}", 0o1777)
        os.makedirs(root + place, exist_ok=True)
        sc.mount(f"{store}/{name}", root + place, flags=sc.MS_BIND)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
