"""A filter for system calls that no program in here needs and that the kernel has been broken through.

Such a call fails with ``EPERM`` for this process and all that it starts, for good. ``clone3`` fails with
``ENOSYS``, since a filter cannot look into its arguments; C libraries then fall back to ``clone``, which may
make processes and threads but no user namespace. What the filter does not name is allowed.

Numbers are those of the kernel's tables: ``arch/x86/entry/syscalls/syscall_64.tbl`` and
``include/uapi/asm-generic/unistd.h``. On other machines there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .syscalls import CLONE_NEWUSER, install_filter

X86_64, AARCH64 = 0xC000003E, 0xC00000B7
"""What the kernel calls these machines (``AUDIT_ARCH_*``)."""
MACHINES = {"x86_64": (X86_64, 0), "aarch64": (AARCH64, 1)}
"""By ``os.uname().machine``: its name for the kernel, and its column below."""

DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
}
CLONE = (56, 220)
CLONE3 = (435, 435)

_X32_CALLS = 0x40000000
"""From here on are those of another calling convention of x86-64, which reach the same calls."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; of an argument the lower half, on machines that begin with it."""
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def filter_calls() -> bool:
    """From here on the calls above fail. False where this machine or kernel has no filters."""
    known = MACHINES.get(os.uname().machine)
    if known is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    try:
        install_filter(program(*known))
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


def program(machine: int, column: int) -> bytes:
    """The filter as the kernel's machine runs it. A jump says how many instructions to leave out."""
    deny, no_such_call = (_RETURN, 0, 0, _FAIL | errno.EPERM), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
    code = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine),
        deny,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        deny,
        (_EQUAL, 0, 1, CLONE3[column]),
        no_such_call,
    ]
    for numbers in DENIED.values():
        code += [(_EQUAL, 0, 1, numbers[column]), deny]
    code += [
        (_EQUAL, 0, 3, CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, CLONE_NEWUSER),
        deny,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
