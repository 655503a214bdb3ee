"""The system calls that Python lacks, through the C library. Each raises ``OSError``."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_FILTER_INSTRUCTION_BYTES = 8
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Move this process (for pid namespaces: its children) into new namespaces."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(result, f"mount {source} on {target}")


def pivot_root_here() -> None:
    """Make the working directory the root and let go of the old one."""
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "umount2")


def _prctl(option: int, value: int, call: str) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), call)


def die_with_parent(signal_number: int) -> None:
    """Get this signal when the parent dies. A change of user forgets it, so call it after that."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "prctl(PR_SET_PDEATHSIG)")


def become_subreaper() -> None:
    """Become the parent of every orphaned descendant."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "prctl(PR_SET_CHILD_SUBREAPER)")


def forbid_new_privileges() -> None:
    """From here on no exec of this process or its descendants gains privileges (setuid bits)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl(PR_SET_NO_NEW_PRIVS)")


def install_filter(program: bytes) -> None:
    """Judge every system call of this process and its descendants by ``program``, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    length = len(program) // _FILTER_INSTRUCTION_BYTES
    order = struct.pack("HxxxxxxP", length, ctypes.addressof(code))
    result = _libc.prctl(ctypes.c_int(_PR_SET_SECCOMP), ctypes.c_ulong(_SECCOMP_MODE_FILTER), order)
    _checked(result, "prctl(PR_SET_SECCOMP)")


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may trace this one and see its open files."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "prctl(PR_SET_DUMPABLE)")


def drop_capabilities() -> None:
    """Give up every capability of this process, for good."""
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(header, data), "capset")
