"""Linux system calls that Python lacks, called through libc's syscall()."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CAP_DAC_READ_SEARCH = 2

X86 = platform.machine() == "x86_64"
"""True on x86-64; False on AArch64, the other supported architecture."""
SUPPORTED = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")


def syscall(number: int, *arguments: int | bytes | ctypes.Structure | None) -> int:
    """Make the system call `number`; structures are passed by reference. Raises OSError."""
    libc = _libc()
    passed: list[object] = []
    for argument in arguments:
        if isinstance(argument, ctypes.Structure):
            passed.append(ctypes.byref(argument))
        elif isinstance(argument, int):
            passed.append(ctypes.c_long(argument))
        else:
            passed.append(argument)
    result: int = libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    syscall(157 if X86 else 167, option, *padded)


def unshare(flags: int) -> None:
    syscall(272 if X86 else 97, flags)


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
        ("high", ctypes.c_uint32 * 3),
    )


def keep_capabilities(mask: int) -> None:
    """Drop all capabilities except those in the bit mask `mask` (bits below 32); they also survive
    exec."""
    header = _CapHeader(0x20080522, 0)
    data = _CapData(mask, mask, mask)
    syscall(126 if X86 else 91, header, data)
    for bit in range(32):
        if mask >> bit & 1:
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit)
