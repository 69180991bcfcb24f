"""Run a command as the parent of all processes that it leaves behind, and report its exit status.

    python -I -S supervise.py DESCRIPTOR COMMAND...

As a subreaper this process becomes the parent of every orphan of the command, so whoever started it
can find and kill them all. When the command ends, its exit status is written to DESCRIPTOR as text.
Then this process waits until it is killed with the orphans. Standard library only.
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
