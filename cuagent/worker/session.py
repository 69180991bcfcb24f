"""A session: one model in one forked process, as the referee drives it.

The referee's clock starts when the command leaves and stops when the last record arrives; between
commands the processes are stopped. Whatever goes wrong on the other side ends the session with
`SessionEnded`, and the process group is killed; a session never hangs and never raises anything
else for a candidate's fault.
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
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cuagent.attempt import Attempt
from cuagent.kernels.compiler import BUILD
from cuagent.sandbox import Policy, Tier
from cuagent.task import Device
from cuagent.worker import suspend
from cuagent.worker.arms import CANDIDATE, ModelSpec
from cuagent.worker.captured_output import CapturedOutput
from cuagent.worker.channel import (
    ForgedRecord,
    Record,
    Status,
    receive_record,
    send_message,
)
from cuagent.worker.exit_reason import conclusion, how_it_died
from cuagent.worker.folder import LIBRARIES, remove
from cuagent.worker.fork_server import ForkServer, ForkServerError
from cuagent.worker.holdings import File, holdings
from cuagent.worker.memory.arena import Arena, settle
from cuagent.worker.memory.device_use import DeviceExcess, DeviceUse
from cuagent.worker.open_timeout import OPEN_S, opening_s

WATCH_S = 1.0
"""How often a candidate's memory and files are looked at: while a call lasts that long, and at rest
after one."""
LEAD = 2_400_000
"""Cycles that a GPU waits before a timed block, some 1.2 ms: after a pause its clocks have dropped,
and so has the host's pace. Without this lead over the GPU the first call of a process that was just
woken measures up to 200 us of launching (docs/concepts/timing.md). Cycles, since they take every
process as long; overwriting memory does not, and a call by itself would be charged for all of a
lead."""


class SessionEnded(Exception):
    """The session is over, its process killed. `detail` is one line."""

    def __init__(self, status: Status, detail: str, output: str):
        super().__init__(f"{status.name.lower()}: {detail}")
        self.status = status
        self.detail = detail
        self.output = output
        """What the process printed: feedback for a person or an agent, read by nothing else."""


@dataclass(frozen=True)
class Block:
    """Some calls under one wall clock."""

    wall_s: float
    """By the referee, from the command to the last record."""
    claimed_s: tuple[float, ...]
    """By the worker, of each forward alone."""


class Session:
    """`open` one, or `begin` it and `import_model`; `load` weights, `run` calls, `close` it."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        environment: dict[str, str],
        policy: Policy | None = None,
        tier: Tier = Tier.NONE,
        memory_bytes: int | None = None,
        device_bytes: int | None = None,
    ):
        self._memory_bytes = memory_bytes
        self._device = None if device_bytes is None else DeviceUse(device_bytes)
        self.time_limit_s = math.inf
        """Seconds that all further commands may take together."""
        self._fork_server = fork_server
        self.folder = folder
        """Its own, which it may write to."""
        self._ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self._lent_files: set[File] = set()
        self._looked = time.monotonic()
        self._apart: set[int] = set()
        self._open_s = OPEN_S
        self.closed = False
        self._child = fork_server.fork("cuagent.worker.program", folder, environment, policy, tier)
        self._printed = CapturedOutput(self._child.output)

    @staticmethod
    def open(
        fork_server: ForkServer,
        model_spec: ModelSpec,
        attempt: Attempt | None = None,
        *,
        environment: dict[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> Session:
        """Fork a process and import the model's code there. Raises SessionEnded, ForkServerError."""
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
        """Fork a process that waits, in its sandbox and with its device ready. Raises ForkServerError.

        So much can be done while a compiler makes the libraries: none of the attempt's code runs
        before `import_model`. `attempt` is laid down in a folder of the session's own, which goes
        when the session does. A candidate is held in the sandbox at `tier`, where it may read
        nothing beside that folder. It ends, as crashed, when its processes have more than
        `memory_bytes` resident, or more of the GPU's memory than its order allows. `cores` are the
        processors that it and all it starts are held on; none given, all.
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
        bounds = memory_bytes, model_spec.device_bytes
        try:
            session = Session(fork_server, folder, given, policy, tier, *bounds)
        except BaseException:
            remove(folder)
            raise
        session._open_s = opening_s(attempt)
        if cores:
            # Before any code of its own runs: threads and processes inherit it, and in a sandbox
            # none can change it. One that is gone already is told of by the command.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(session.pid, cores)
        return session

    def import_model(self, libraries: Collection[Path] = ()) -> None:
        """Let it import the model's code, with copies of `libraries`. Raises SessionEnded."""
        try:
            for library in libraries:
                shutil.copy(library, self.folder / LIBRARIES)
        except BaseException:
            self.close()
            raise
        self._command({"do": "open"}, self._open_s)

    def await_ready(self) -> None:
        """Until its device is ready, for who shares that with others. Raises SessionEnded."""
        self._command({"do": "nothing"}, OPEN_S)

    @property
    def pid(self) -> int:
        """Of the process, which is also its group's."""
        return self._child.pid

    def load(
        self, weights: Arena, slot: int = 0, *, fresh: bool = True, deadline_s: float = OPEN_S
    ) -> None:
        """Load a state dict, into a newly constructed model or (not `fresh`) the one in use."""
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
    ) -> Block:
        """Call forward on each (input slot, output slot) in turn, under one wall clock.

        `poison` is the byte that fills what the model allocates uninitialised (never when timing);
        `flush` is how many bytes to overwrite before each call (inside the wall clock, outside the
        claims), `lead` how many cycles the GPU then waits before the first; `own` lets each call's
        inputs be copied into the worker's own memory first, also outside the claims. The outputs
        are the referee's to poison before and to compare after.
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
    ) -> Block:
        """`run` for timing: nothing poisoned, nothing checked on the worker's side but the form.

        On a GPU inputs are copied first: a module is not usually called on memory that another
        process lends it.
        """
        own = inputs.device != "cpu"
        return self.run(inputs, outputs, slots, deadline_s=deadline_s, flush=flush, own=own)

    def forget(self, arena: Arena) -> None:
        """Take back an arena that was lent, before closing it."""
        if not self.closed and arena in self._lent:
            self._command({"do": "detach", "arena": self._lent.pop(arena)}, OPEN_S)

    def output(self) -> str:
        """What the process has printed so far, capped; its own files by their relative names."""
        if not self.closed:
            self._printed.drain()
        return self._printed.text.replace(f"{self.folder}/", "")

    def close(self) -> int | None:
        """Kill the process and all it left; its wait status. Idempotent."""
        if self.closed:
            return None
        self._printed.drain()
        self.closed = True
        try:
            return self._fork_server.end(self._child)
        except ForkServerError:
            return None  # its parent is gone, and it with its parent
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
                about = os.fstat(descriptor)
                self._lent_files.add((about.st_dev, about.st_ino))
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
        """Let the process do a command; its records, each checked, and the seconds to the last one.

        Not to the first: that could be sent before the work is done. Raises SessionEnded.
        """
        assert not self.closed, "the session is closed"
        nonce = secrets.randbits(64)
        seconds = min(seconds, max(self.time_limit_s, 0))
        if self._device is not None:
            self._device.begin()
        begun = time.perf_counter()
        self._resume()
        try:
            send_message(self._child.channel, message | {"nonce": nonce}, descriptors)
            records = self._records(nonce, expected, time.monotonic() + seconds)
            wall = time.perf_counter() - begun
            self._suspend()
            self._look()
            if self._device is not None:
                self._device.end()
        except ForgedRecord as error:
            self._stop(Status.FORGED, f"wrote to the referee's channel: {error}")
        except TimeoutError:
            self._stop(Status.TIMED_OUT, f"no answer within {seconds:.3g} s")
        except (_Excess, suspend.SuspendError) as excess:
            self._stop(Status.CRASHED, str(excess))
        except DeviceExcess as excess:
            self._stop(Status.CRASHED, str(excess), suspect=self._device)
        except OSError:  # the channel broke: the other end is gone
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
        """Nothing of it runs until the next command."""
        self._apart = self._fork_server.rest(self._child)

    def _resume(self) -> None:
        suspend.resume(self._child.pid, self._apart)

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
                    self._device.look()
                self._look()  # also at one that prints all the time
            if channel.fileno() in ready:
                record = receive_record(channel)
                if record is None:
                    raise ConnectionResetError
                return record
            if pidfd in ready:
                raise ConnectionResetError
            if output in ready and not self._printed.drain():
                poll.unregister(output)

    def _look(self) -> None:
        """Look at what a candidate holds, unless that was done just now. Raises _Excess."""
        if self._memory_bytes is None or time.monotonic() - self._looked < WATCH_S:
            return
        family = self._fork_server.family(self._child)
        held = holdings(self._child.pid, family, self.folder, self._lent_files)
        self._looked = time.monotonic()
        if excess := held.excess(self._memory_bytes):
            raise _Excess(excess)

    def _stop(self, status: Status, detail: str = "", suspect: DeviceUse | None = None) -> NoReturn:
        if status is Status.CRASHED and self._child.pidfd is not None:
            # The channel closes a moment before the process is gone; its own status is wanted.
            select.select([self._child.pidfd], [], [], 1.0)
        ended = self.close()
        text = self.output()
        if status is Status.CRASHED and ended is not None:
            detail = detail or how_it_died(ended)
        if suspect is not None and not suspect.came_back():
            status, detail = Status.LOST, "others took the GPU's memory meanwhile"
        if ended is None:
            status, detail = Status.LOST, "the process could not be ended in an orderly way"
        raise SessionEnded(status, detail or conclusion(status, text), text)


class _Excess(Exception):
    """The candidate took more of the machine than it may."""
