"""Drive a child process that examines candidate tasks: give it an order, await or end it.

Each candidate has its own folder in the process's folder. The caches of torch.compile and Triton
belong to the process.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuagent.synth.order import Order
from cuagent.synth.progress import Seen, read_progress
from cuagent.synth.reasons import Reason
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.fork_server import Child

INTERVAL_LIMIT_S = 20.0
"""Limit in seconds of an interval in which a candidate keeps a shared GPU from the timings of
others. It usually takes less than one second; the first use of a library takes several."""
HELD_LIMIT_S = 60.0
"""Limit in seconds of all such intervals of one candidate together."""
POLL_S = 0.2
"""Seconds between two looks at a candidate's state."""
EXIT_S = 10.0
"""Longest wait in seconds for the exit of a process after the request to exit."""
EXIT_POLL_S = 0.02
INTERRUPTED = "interrupted"
"""Key of the answer for a candidate whose process was ended at an interrupt."""


@dataclass
class Process:
    """A process that examines one candidate after another."""

    child: Child
    folder: Path
    used: int = 0
    """Number of candidates that were given to the process."""

    def ask(self, order: Order, limit_s: float, stopped: threading.Event) -> dict[str, Any]:
        """Give the process a candidate and return its answer.

        If the process dies, exceeds `limit_s` seconds without waiting, or keeps a shared GPU too
        long, the answer has `reason` and `detail`. Once `stopped` is set it has the key
        `INTERRUPTED`. In these cases the process is killed.
        """
        self.used += 1
        folder = self.folder / f"candidate-{self.used}"
        folder.mkdir()
        try:
            order.write(folder)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died
                send_message(self.child.channel, {"folder": str(folder)})
            return self._answer(folder, limit_s, stopped)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _answer(self, folder: Path, limit_s: float, stopped: threading.Event) -> dict[str, Any]:
        begun = time.monotonic()
        seen: Seen | None = None
        while True:
            ended, _, _ = select.select([self.child.channel], [], [], POLL_S)
            if (published := read_progress(folder)) is not None:
                seen = published.at(time.monotonic())
            if stopped.is_set():
                found: dict[str, Any] = {INTERRUPTED: True}
                break
            if ended:
                if (received := receive_message(self.child.channel)) is not None:
                    return received[0]
                found = {"reason": Reason.CRASHED.value, "detail": "its process died"}
                break
            waited_s = 0.0 if seen is None else seen.waited_s
            if time.monotonic() - begun - waited_s > limit_s:
                found = {"reason": Reason.TIMED_OUT.value, "detail": f"over {limit_s:.0f} s"}
                break
            if seen is not None and (text := _kept_too_long(seen)):
                found = {"reason": Reason.SLOW.value, "detail": text}
                break
        # The fork server has not collected the exit status yet, so the number is not reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.child.pid, signal.SIGKILL)
        return found | ({} if seen is None else {"gpu": seen.to_json(), "stage": seen.stage})

    def await_end(self) -> None:
        """Tell the process to end, and wait until it has ended, at most `EXIT_S` seconds."""
        with contextlib.suppress(OSError):
            self.child.channel.shutdown(socket.SHUT_WR)
        if self.child.pidfd is not None:
            select.select([self.child.pidfd], [], [], EXIT_S)
            return
        deadline = time.monotonic() + EXIT_S
        while _runs(self.child.pid) and time.monotonic() < deadline:
            time.sleep(EXIT_POLL_S)


def _runs(pid: int) -> bool:
    """Return False if a process has ended, also if its parent has not collected its status."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _kept_too_long(seen: Seen) -> str:
    """Return how a candidate has exceeded a limit on its use of the GPU; "" if it has not."""
    if seen.longest_s > INTERVAL_LIMIT_S:
        return f"{seen.longest_stage}: over {INTERVAL_LIMIT_S:.0f} s without a pause"
    if seen.held_s > HELD_LIMIT_S:
        return f"over {HELD_LIMIT_S:.0f} s with the GPU"
    return ""
