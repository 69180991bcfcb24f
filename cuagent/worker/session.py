"""A session: one model in one forked process, as the referee drives it.

The referee's clock starts when a command is sent and stops when its last record arrives. The
processes are stopped between commands. Any failure of the worker ends the session with
`SessionEnded` and kills its process group. A session never hangs and raises no other error for a
candidate's fault.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.kernels.compiler import BUILD
from cuagent.sandbox import Policy, Tier
from cuagent.task import Device
from cuagent.worker import suspend
from cuagent.worker.arms import ModelSpec
from cuagent.worker.captured_output import CapturedOutput
from cuagent.worker.channel import (
    ForgedRecord,
    Record,
    Status,
    receive_record,
    send_message,
)
from cuagent.worker.exit_reason import describe_exit, last_line
from cuagent.worker.folder import LIBRARIES, remove
from cuagent.worker.fork_server import ForkServer, ForkServerError
from cuagent.worker.holdings import File, holdings
from cuagent.worker.memory.arena import Arena, settle
from cuagent.worker.memory.device_use import DeviceExcess, DeviceUse
from cuagent.worker.open_timeout import OPEN_S, import_time_limit_s

WATCH_S = 1.0
"""Seconds between two checks of a candidate's memory and files, during a call and after one."""
LEAD = 2_400_000
"""Cycles that a GPU waits before a timed block, about 1.2 ms, in which the host queues work ahead.

After a pause the clocks of GPU and host are low. Without this lead the first call of a process that
was just resumed measures up to 200 us of launch overhead (docs/concepts/timing.md). The wait is in
cycles because these take equally long in every process; overwriting memory does not, and a single
call would then be charged for the whole lead.
"""


BUSY = "verify again if the machine was busy"
SLOW = {
    "open": "compile kernels from kernels/ ahead of time, not at import, and " + BUSY,
    "load": "construct the model with less work, and " + BUSY,
    "run": "look for a hang, compile before the first call (in kernels/ or on import), and " + BUSY,
}
"""Advice after a command that took too long."""
OUT_OF_MEMORY = "out of memory"
"""Part of the error of torch's CUDA allocator."""


class SessionEnded(Exception):
    """The session ended and its process was killed. `detail` is one line."""

    def __init__(self, status: Status, detail: str, output: str):
        super().__init__(f"{status.name.lower()}: {detail}")
        self.status = status
        self.detail = detail
        self.output = output
        """Text that the process printed: feedback for a person or an agent, which no program
        reads."""


@dataclass(frozen=True)
class Block:
    """Calls that were timed together by one wall clock."""

    wall_s: float
    """Seconds by the referee's clock, from the command to the last record."""
    claimed_s: tuple[float, ...]
    """Seconds of each forward by the worker's clock."""


class Session:
    """One model in one process. `open` it, or `begin` it and `import_model`; `load` weights, `run`
    calls, `close` it."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        environment: dict[str, str],
        policy: Policy | None = None,
        tier: Tier = Tier.NONE,
        memory_bytes: int | None = None,
        device_bytes: int | None = None,
        kept_bytes: int | None = None,
    ):
        self._memory_bytes = memory_bytes
        self._device = None if device_bytes is None else DeviceUse(device_bytes, kept_bytes)
        self.time_limit_s = math.inf
        """Seconds that all further commands may take together."""
        self._fork_server = fork_server
        self.folder = folder
        """Folder that the session owns and may write to."""
        self._ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self._lent_files: set[File] = set()
        self._checked_at = time.monotonic()
        self._outside_group: set[int] = set()
        self._switching = threading.Lock()
        self._in_command = self._paused = False
        self._open_s = OPEN_S
        self.closed = False
        self._child = fork_server.fork("cuagent.worker.program", folder, environment, policy, tier)
        self._captured = CapturedOutput(self._child.output)

    @staticmethod
    def open(
        fork_server: ForkServer,
        model_spec: ModelSpec,
        attempt: Attempt | None = None,
        *,
        environment: dict[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> Session:
        """Fork a process and import the model's code in it. Raises SessionEnded,
        ForkServerError."""
        session = Session.begin(
            fork_server, model_spec, attempt, environment=environment, cores=cores
        )
        session.import_model()
        return session

    @staticmethod
    def begin(
        fork_server: ForkServer,
        model_spec: ModelSpec,
        attempt: Attempt | None = None,
        *,
        tier: Tier = Tier.NONE,
        environment: dict[str, str] | None = None,
        memory_bytes: int | None = None,
        cores: Collection[int] = (),
    ) -> Session:
        """Fork a process that waits in its sandbox with its device ready. Raises ForkServerError.

        This can run while a compiler builds the libraries: no code of the attempt runs before
        `import_model`. `attempt` is written to a folder that the session owns and removes. A
        candidate is confined in the sandbox at `tier`, where it may read nothing of ours outside
        that folder. The session ends as crashed if its processes hold more than `memory_bytes` of
        memory, or more GPU memory than `model_spec.device_bytes`. `cores` are the processors that
        it and its children may use; empty means all.
        """
        folder = Path(tempfile.mkdtemp(dir=fork_server.folder))
        # A worker under another user id must be able to enter it.
        folder.chmod(0o755)
        (folder / "order.json").write_text(json.dumps(model_spec.to_json()))
        given = dict(environment or {})
        if attempt is not None:
            attempt.write(folder)
            (folder / LIBRARIES).mkdir()
            given[BUILD] = str(folder / LIBRARIES)
        policy = None
        if model_spec.arm == CANDIDATE:
            policy = Policy(
                write=(folder,),
                gpu=model_spec.device is Device.CUDA,
                fds=(0, 1, 2, 3),
                memory_bytes=memory_bytes,
                environment=tuple(given.items()),
            )
        bounds = memory_bytes, model_spec.device_bytes, model_spec.kept_bytes
        try:
            session = Session(fork_server, folder, given, policy, tier, *bounds)
        except BaseException:
            remove(folder)
            raise
        session._open_s = import_time_limit_s(attempt)
        if cores:
            # Set before any code of the candidate runs: its threads and processes inherit it and
            # cannot change it in a sandbox. A process that died already fails at its next command.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(session.pid, cores)
        return session

    def import_model(self, libraries: Collection[Path] = ()) -> None:
        """Copy `libraries` to the session's folder and import the model's code. Raises
        SessionEnded."""
        try:
            for library in libraries:
                shutil.copy(library, self.folder / LIBRARIES)
        except BaseException:
            self.close()
            raise
        self._command({"do": "open"}, self._open_s)

    def await_ready(self) -> None:
        """Wait until the device is ready. Raises SessionEnded."""
        self._command({"do": "nothing"}, OPEN_S)

    @property
    def pid(self) -> int:
        """Process id, equal to the process group's."""
        return self._child.pid

    def load(
        self, weights: Arena, slot: int = 0, *, fresh: bool = True, deadline_s: float = OPEN_S
    ) -> None:
        """Load a state dict into a new model if `fresh`, else into the one in use. Raises
        SessionEnded."""
        message = {"do": "load", "arena": self._lend(weights), "slot": slot, "fresh": fresh}
        self._command(message, deadline_s)

    def run(
        self,
        inputs: Arena,
        outputs: Arena,
        slots: Sequence[tuple[int, int]],
        *,
        deadline_s: float,
        poison: int | None = None,
        flush: int = 0,
        own: bool = False,
        lead: int = LEAD,
        lean: bool = False,
        keep: int = 0,
    ) -> Block:
        """Call forward on each (input slot, output slot) in order, timed together. Raises
        SessionEnded.

        `deadline_s` is the time limit of the block in seconds. `poison` is the byte that fills the
        model's uninitialised allocations (None when timing). `flush` is the number of bytes to
        overwrite before each call, inside the wall clock and outside the claims. `lead` is the
        number of cycles that the GPU then waits before the first call. With `own` each call's
        inputs are first copied to the worker's own memory, also outside the claims. With `lean` the
        worker then releases what it allocated for the calls, and makes no repeated calls that need
        copies of their outputs. An output is copied to its slot after `keep` further calls, or
        after the last one. The caller poisons the outputs before and compares them after.
        """
        message = {
            "do": "run",
            "inputs": self._lend(inputs),
            "outputs": self._lend(outputs),
            "slots": [list(pair) for pair in slots],
            "poison": poison,
            "flush": flush,
            "own": own,
            "lead": lead,
            "lean": lean,
            "keep": keep,
        }
        settle(outputs.device)
        records, wall = self._exchange(message, (), len(slots), deadline_s)
        return Block(wall, tuple(record.claimed_ns * 1e-9 for record in records))

    def block(
        self,
        inputs: Arena,
        outputs: Arena,
        slots: Sequence[tuple[int, int]],
        *,
        deadline_s: float,
        flush: int = 0,
        lean: bool = False,
        keep: int = 0,
    ) -> Block:
        """Call `run` for timing: no poison, and no check in the worker except of the output's form.

        On a GPU inputs are copied first, because a module is not usually called on another
        process's memory.
        """
        own = inputs.device != "cpu"
        return self.run(
            *(inputs, outputs, slots),
            deadline_s=deadline_s,
            flush=flush,
            own=own,
            lean=lean,
            keep=keep,
        )

    def pause(self) -> None:
        """Stop the processes in the middle of a command, which another thread waits for.

        Only for processes that are trusted to stop.
        """
        with self._switching:
            self._paused = True
            if self._in_command and not self.closed:
                with contextlib.suppress(suspend.SuspendError, ForkServerError):
                    self._suspend()

    def unpause(self) -> None:
        """Continue the command that `pause` stopped, if it has not ended."""
        with self._switching:
            self._paused = False
            if self._in_command and not self.closed:
                self._resume()

    def forget(self, arena: Arena) -> None:
        """Detach an arena that was lent, before it is closed."""
        if not self.closed and arena in self._lent:
            self._command({"do": "detach", "arena": self._lent.pop(arena)}, OPEN_S)

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

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lend(self, arena: Arena) -> int:
        if arena not in self._lent:
            number = next(self._ids)
            description, descriptors = arena.describe()
            for descriptor in descriptors:
                file = os.fstat(descriptor)
                self._lent_files.add((file.st_dev, file.st_ino))
            message = {"do": "attach", "arena": number, "description": description}
            self._command(message, OPEN_S, descriptors)
            self._lent[arena] = number
        return self._lent[arena]

    def _command(
        self, message: dict[str, Any], deadline_s: float, descriptors: tuple[int, ...] = ()
    ) -> None:
        self._exchange(message, descriptors, 1, deadline_s)

    def _exchange(
        self, message: dict[str, Any], descriptors: tuple[int, ...], expected: int, seconds: float
    ) -> tuple[list[Record], float]:
        """Send a command; return its records, each checked, and the seconds until the last one.

        The first record does not count, because it could be sent before the work is done. Raises
        SessionEnded.
        """
        assert not self.closed, "the session is closed"
        nonce = secrets.randbits(64)
        seconds = min(seconds, max(self.time_limit_s, 0))
        if self._device is not None:
            self._device.begin()
        start = time.perf_counter()
        with self._switching:
            self._in_command = True
            if not self._paused:
                self._resume()
        try:
            send_message(self._child.channel, message | {"nonce": nonce}, descriptors)
            records = self._records(nonce, expected, time.monotonic() + seconds)
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
        self.time_limit_s -= wall
        return records, wall

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
        """Stop all processes of the session until the next command."""
        self._outside_group = self._fork_server.suspend(self._child)

    def _resume(self) -> None:
        suspend.resume(self._child.pid, self._outside_group)

    def _next_record(self, deadline: float) -> Record:
        channel, output, pidfd = self._child.channel, self._child.output, self._child.pidfd
        poll = select.poll()
        for descriptor in (channel.fileno(), output, *([pidfd] if pidfd is not None else [])):
            poll.register(descriptor, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
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
        """Check the memory and files of a candidate, at most once in WATCH_S seconds. Raises
        _Excess."""
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
