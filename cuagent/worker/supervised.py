"""Run an untrusted command so that none of its processes outlives it.

A sandboxed program can start processes in sessions of their own, which no signal to its group
reaches. They could use the device while others are timed.

Not covered: access rights, which the command's sandbox sets.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cuagent.worker import suspend

SUPERVISOR = Path(__file__).with_name("supervise.py")
KILL_S = 10.0
"""Seconds to wait for the end of a command's processes after killing them."""


class Supervised:
    """Context manager that runs a command under `supervise.py` and kills all its processes at the
    end."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        output: IO[Any],
        errors: IO[Any] | None = None,
    ) -> None:
        """Start the command in `folder`. `errors` is the file for stderr, by default the same as
        `output`."""
        self._status, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs), *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if errors is None else errors,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._status)
            raise
        finally:
            os.close(theirs)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        own = self._process.pid
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline:
            with suppress(suspend.SuspendError):  # stopped processes start no others
                self.stop()
            left = suspend.process_tree(own, own, ()) - {own}
            if not left:
                break
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.kill(own, signal.SIGCONT)  # it takes the ended processes from the system
            time.sleep(0.01)
        os.killpg(own, signal.SIGKILL)
        self._process.wait()
        os.close(self._status)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the command's end; return True if it has ended."""
        return bool(select.select([self._status], [], [], seconds)[0])

    def status(self) -> int | None:
        """Return the exit status of the ended command; None if the supervisor was killed."""
        text = os.read(self._status, 32)
        return int(text) if text else None

    def stop(self) -> set[int]:
        """Stop all processes of the command; return those outside its process group, for `resume`.

        Raises SuspendError.
        """
        return suspend.stop(self._process.pid, self._process.pid, ())

    def resume(self, outside: set[int]) -> None:
        """Continue the processes that `stop` stopped; `outside` is what `stop` returned."""
        suspend.resume(self._process.pid, outside)
