"""A forked process that executes the referee's commands and is suspended between them.

A command's time runs from its sending to the arrival of its last record, and is limited. A
candidate's memory and files are limited too. After any failure of the process its group is killed
and `SessionEnded` is raised.
"""

from __future__ import annotations

import math
import secrets
import select
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cuagent.sandbox import Policy, Tier
from cuagent.worker import suspend
from cuagent.worker.captured_output import CapturedOutput
from cuagent.worker.channel import (
    ForgedRecord,
    Record,
    Status,
    receive_record,
    send_message,
)
from cuagent.worker.exit_reason import describe_exit, last_line
from cuagent.worker.folder import remove
from cuagent.worker.fork_server import ForkServer, ForkServerError
from cuagent.worker.holdings import File, holdings
from cuagent.worker.memory.device_use import DeviceExcess, DeviceUse

WATCH_S = 1.0
"""Shortest time in seconds between two checks of a candidate's memory and files."""
BUSY = "verify again if the machine was busy"
SLOW = {
    "open": "compile kernels from kernels/ ahead of time, not at import, and " + BUSY,
    "load": "construct the model with less work, and " + BUSY,
    "run": "look for a hang, compile before the first call (in kernels/ or on import), and " + BUSY,
}
"""Advice in the error message after a timeout, by the name of the command that took too long."""
OUT_OF_MEMORY = "out of memory"
"""Text by which an error of torch's CUDA allocator is recognized."""


class SessionEnded(Exception):
    """Error: a session failed and its process was killed. `detail` is the reason in one line."""

    def __init__(self, status: Status, detail: str, output: str):
        super().__init__(f"{status.name.lower()}: {detail}")
        self.status = status
        self.detail = detail
        self.output = output
        """Text that the process printed, to show to a person or an agent; no code decides by it."""


@dataclass(frozen=True)
class Limits:
    """Most memory in bytes that a process and its children may occupy; None for no limit."""

    memory_bytes: int | None
    device_bytes: int | None
    """Bytes of GPU memory at any time."""
    kept_bytes: int | None
    """Bytes of GPU memory between two commands."""


class DrivenProcess:
    """A forked process, the channel for its commands, and the folder that it may write to."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        environment: dict[str, str],
        policy: Policy | None,
        tier: Tier,
        limits: Limits,
    ):
        self._memory_bytes = limits.memory_bytes
        self._device = None
        if limits.device_bytes is not None:
            self._device = DeviceUse(limits.device_bytes, limits.kept_bytes)
        self.time_limit_s = math.inf
        """Seconds that all further commands may take together."""
        self._fork_server = fork_server
        self.folder = folder
        """Folder that the process may write to."""
        self._lent_files: set[File] = set()
        self._checked_at = time.monotonic()
        self._outside_group: set[int] = set()
        self._switching = threading.Lock()
        self._in_command = self._paused = False
        self._paused_at = self._paused_s = 0.0
        """Time of the monotonic clock at which the last pause began; seconds of earlier pauses."""
        self._warms_up = True
        """True until the first command: the new process starts CUDA, and is not suspended yet."""
        self.closed = False
        self._child = fork_server.fork("cuagent.worker.program", folder, environment, policy, tier)
        self._captured = CapturedOutput(self._child.output)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._child.pid

    @property
    def may_compute(self) -> bool:
        """True if the process is not stopped: it executes a command, or has had none yet."""
        with self._switching:
            return (self._in_command or self._warms_up) and not (self._paused or self.closed)

    def pause(self) -> bool:
        """Stop the process and its descendants now, although another thread waits for its command,
        or it has had none yet; return False if some cannot be stopped. Call `unpause` in any case.

        The time until `unpause` does not count against the time limits of commands. Work that is
        queued on a GPU continues.
        """
        stopped = True
        with self._switching:
            if (self._in_command or self._warms_up) and not self.closed:
                try:
                    self._suspend()
                except ForkServerError:
                    stopped = False
                except suspend.SuspendError as error:
                    stopped, self._outside_group = False, set(error.outside_group)
            # Seconds of vain attempts to stop the process count: it computed meanwhile.
            self._paused, self._paused_at = True, time.monotonic()
        return stopped

    def unpause(self) -> None:
        """Continue the processes that `pause` stopped, unless their command has ended."""
        with self._switching:
            if self._paused:
                self._paused_s += time.monotonic() - self._paused_at
            self._paused = False
            if (self._in_command or self._warms_up) and not self.closed:
                self._resume()

    def output(self) -> str:
        """Return the text that the process printed so far, capped, with paths relative to its
        folder."""
        if not self.closed:
            self._captured.drain()
        return self._captured.text.replace(f"{self.folder}/", "")

    def close(self) -> int | None:
        """Kill the process and its descendants and return its wait status. Idempotent."""
        if self.closed:
            return None
        self._captured.drain()
        self.closed = True
        try:
            return self._fork_server.end(self._child)
        except ForkServerError:
            return None  # the fork server died, and its children with it
        finally:
            remove(self.folder)

    def _command(
        self, message: dict[str, Any], deadline_s: float, descriptors: tuple[int, ...] = ()
    ) -> None:
        self._exchange(message, descriptors, 1, deadline_s)

    def _exchange(
        self, message: dict[str, Any], descriptors: tuple[int, ...], expected: int, seconds: float
    ) -> tuple[list[Record], float]:
        """Send a command; wait for `expected` records in reply, and check each.

        Returns the records and the seconds until the last one. The time runs until the last record,
        because the first could be sent before the work is done. Raises SessionEnded.
        """
        assert not self.closed, "the session is closed"
        nonce = secrets.randbits(64)
        seconds = min(seconds, max(self.time_limit_s, 0))
        if self._device is not None:
            self._device.begin()
        start, paused = time.perf_counter(), self._paused_total()
        with self._switching:
            self._in_command, self._warms_up = True, False
            if not self._paused:
                self._resume()
        try:
            send_message(self._child.channel, message | {"nonce": nonce}, descriptors)
            records = self._records(nonce, expected, time.monotonic() - paused + seconds)
            wall = time.perf_counter() - start
            with self._switching:
                self._in_command = False
                self._suspend()
            self._check_holdings()
            if self._device is not None:
                self._device.end(released=message.get("lean", False))
        except ForgedRecord as error:
            self._stop(Status.FORGED, f"wrote to the verifier's channel (fd 3): {error}")
        except TimeoutError:
            advice = SLOW.get(message["do"], BUSY)
            self._stop(Status.TIMED_OUT, f"no answer within {seconds:.3g} s; {advice}")
        except (_Excess, suspend.SuspendError) as excess:
            self._stop(Status.CRASHED, str(excess))
        except DeviceExcess as excess:
            self._stop(Status.CRASHED, str(excess), suspect=self._device)
        except OSError:  # the channel broke: the process died
            self._stop(Status.CRASHED)
        self.time_limit_s -= wall - (self._paused_total() - paused)
        return records, wall

    def _paused_total(self) -> float:
        """Return the seconds of all pauses so far."""
        with self._switching:
            now = time.monotonic() - self._paused_at if self._paused else 0.0
            return self._paused_s + now

    def _records(self, nonce: int, expected: int, deadline: float) -> list[Record]:
        records: list[Record] = []
        for call in range(expected):
            record = self._next_record(deadline)
            if record.nonce != nonce or record.call != call:
                raise ForgedRecord("a record that answers no command")
            if record.status is not Status.DONE:
                self._stop(record.status)
            records.append(record)
        return records

    def _suspend(self) -> None:
        """Stop the process and all its descendants until the next command."""
        self._outside_group = self._fork_server.suspend(self._child)

    def _resume(self) -> None:
        suspend.resume(self._child.pid, self._outside_group)

    def _next_record(self, deadline: float) -> Record:
        channel, output, pidfd = self._child.channel, self._child.output, self._child.pidfd
        poll = select.poll()
        for descriptor in (channel.fileno(), output, *([pidfd] if pidfd is not None else [])):
            poll.register(descriptor, select.POLLIN)
        while True:
            left = deadline + self._paused_total() - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = {descriptor for descriptor, _ in poll.poll(min(left, WATCH_S) * 1000)}
            if channel.fileno() not in ready and pidfd not in ready:
                if self._device is not None and not ready:
                    self._device.check()
                self._check_holdings()  # also for a process that prints without pause
            if channel.fileno() in ready:
                record = receive_record(channel)
                if record is None:
                    raise ConnectionResetError
                return record
            if pidfd in ready:
                raise ConnectionResetError
            if output in ready and not self._captured.drain():
                poll.unregister(output)

    def _check_holdings(self) -> None:
        """Raise _Excess if the candidate's memory or files exceed their limit.

        It measures at most once in WATCH_S seconds.
        """
        if self._memory_bytes is None or time.monotonic() - self._checked_at < WATCH_S:
            return
        process_tree = self._fork_server.process_tree(self._child)
        held = holdings(self._child.pid, process_tree, self.folder, self._lent_files)
        self._checked_at = time.monotonic()
        if excess := held.excess(self._memory_bytes):
            raise _Excess(excess)

    def _stop(self, status: Status, detail: str = "", suspect: DeviceUse | None = None) -> NoReturn:
        if status is Status.CRASHED and self._child.pidfd is not None:
            # The channel closes shortly before the process ends; wait for its exit status.
            select.select([self._child.pidfd], [], [], 1.0)
        ended = self.close()
        text = self.output()
        if status is Status.CRASHED and ended is not None:
            detail = detail or describe_exit(ended)
        if self._device is not None and OUT_OF_MEMORY in (detail or last_line(status, text)):
            room = f"{self._device.limit / 2**30:.1f} GiB are free for it"
            detail = detail or last_line(status, text)
            detail += f"; {room}: keep fewer or smaller temporary tensors"
        if suspect is not None and not suspect.was_freed():
            status, detail = Status.LOST, "another process used up the GPU's memory meanwhile"
        if ended is None:
            status, detail = Status.LOST, "the candidate's process did not end when it was killed"
        raise SessionEnded(status, detail or last_line(status, text), text)


class _Excess(Exception):
    """The candidate used more memory or disk space than its limit."""
