"""Run a command, keep the processes that it leaves behind, and report its exit status.

    python -I -S supervise.py DESCRIPTOR COMMAND...

This process is the parent of every process that leaves the tree of the command, so its starter
can find them all. At the end of the command it writes the exit status to DESCRIPTOR as text and
waits to be killed together with what is left. Standard library only.
"""

import ctypes
import os
import sys
import time
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36


def main(descriptor: int, command: list[str]) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    child = os.fork()
    if child == 0:
        os.close(descriptor)
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    status = None
    while status is None:
        pid, ended = os.waitpid(-1, 0)
        status = ended if pid == child else None
    os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
    while True:  # until it is killed
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.005)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
