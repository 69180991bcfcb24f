"""Restrict a process with Landlock to given files; block TCP, signals and abstract sockets.

Source of numbers and structures: linux/landlock.h, ABI 1 to 7 (Linux 5.13 to 6.15).

Invariants: a restriction is permanent. It covers the calling thread and its future children, so it
must be applied while the process has one thread.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from cuagent.sandbox.linux import SUPPORTED, syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_QUERY = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file system rights in each Landlock ABI. They are the lowest bits of a mask."""
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that exist for plain files; the others exist for folders only."""
TCP = 0b11
"""Rights to bind and to connect TCP sockets, which ABI 4 and newer can deny."""
SCOPED = 0b11
"""Restriction of abstract Unix sockets and signals to the sandbox, since ABI 6."""

READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Return the version of the kernel's Landlock ABI; 0 if the kernel has no Landlock."""
    if not SUPPORTED:
        return 0
    try:
        return syscall(CREATE_RULESET, None, 0, VERSION_QUERY)
    except OSError:
        return 0


def restrict(
    read: Iterable[Path],
    write: Iterable[Path],
    devices: Iterable[Path],
    *,
    network: bool,
) -> None:
    """Deny this process every file except the given paths. Raises OSError.

    Requires no_new_privs. Files in `read` can also be executed: denying that for readable files has
    no effect, as a loader can map them. TCP is denied too unless `network`.
    """
    version = abi()
    all_rights = (1 << ALL_FILE_RIGHTS[min(version, 5)]) - 1 if version else 0
    ruleset = _Ruleset(
        all_rights,
        TCP if version >= 4 and not network else 0,
        SCOPED if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    handle = syscall(CREATE_RULESET, ruleset, size, 0)
    try:
        for paths, rights in ((read, READ), (write, all_rights & ~IOCTL_DEV), (devices, DEVICE)):
            for path in paths:
                _allow(handle, path, rights & all_rights)
        syscall(RESTRICT_SELF, handle, 0)
    finally:
        os.close(handle)


def _allow(handle: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _PathBeneath(rights if folder else rights & ON_FILES, descriptor)
        syscall(ADD_RULE, handle, PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
