"""Run a command in which the system call open_tree fails, as under an old container's filter:
`PROGRAM COMMAND...`.

Namespaces and plain mounts still work, so the set-up of a file system view fails half way.
"""

import ctypes
import os
import struct
import sys

NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, RETURN, ALLOW, FAIL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
OPEN_TREE = 428


class Program(ctypes.Structure):
    """C struct sock_fprog: a seccomp filter program."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


if __name__ == "__main__":
    steps = ((LOAD, 0, 0, 0), (EQUAL, 0, 1, OPEN_TREE), (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    memory = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (NO_NEW_PRIVS, 1, 0, 0, 0),
        (SET_SECCOMP, FILTER, ctypes.byref(Program(len(steps), ctypes.addressof(memory))), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])
