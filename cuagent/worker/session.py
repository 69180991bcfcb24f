"""A session: one model in one forked process that executes the referee's commands.

A command's time runs on the referee's clock from its sending to the arrival of its last record. The
process and its descendants are stopped between commands. After any failure of the worker the
process group is killed and `SessionEnded` is raised. A session never hangs and raises no other
error for a candidate's fault.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.kernels.compiler import BUILD
from cuagent.sandbox import Policy, Tier
from cuagent.task import Device
from cuagent.worker.arms import ModelSpec
from cuagent.worker.driven_process import DrivenProcess, Limits
from cuagent.worker.folder import LIBRARIES, remove
from cuagent.worker.fork_server import ForkServer
from cuagent.worker.memory.arena import Arena, synchronize
from cuagent.worker.open_timeout import OPEN_S, import_time_limit_s

LEAD = 2_400_000
"""Cycles that a GPU waits before a timed block, about 1.2 ms, in which the host queues work ahead.

After a pause the clocks of GPU and host are low. Without this wait the first call of a process that
was just resumed measures up to 200 us of launch overhead (docs/concepts/timing.md). The wait is in
cycles because these take equally long in every process. Overwriting memory, the alternative, does
not take equally long, and a single call would then be charged for the whole wait.
"""


@dataclass(frozen=True)
class Block:
    """Durations of consecutive calls that the referee timed together."""

    wall_s: float
    """Seconds on the referee's clock from the sending of the command to the last record."""
    claimed_s: tuple[float, ...]
    """Seconds of each call of forward on the worker's own clock."""


class Session(DrivenProcess):
    """One model in one process. `open` starts it (or `begin`, then `import_model`); `load` loads
    weights, `run` calls forward, `close` ends it."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        environment: dict[str, str],
        policy: Policy | None,
        tier: Tier,
        limits: Limits,
    ):
        super().__init__(fork_server, folder, environment, policy, tier, limits)
        self._ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self._open_s = OPEN_S

    @staticmethod
    def open(
        fork_server: ForkServer,
        model_spec: ModelSpec,
        attempt: Attempt | None = None,
        *,
        environment: dict[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> Session:
        """Fork a process without a sandbox and import the model's code. Raises SessionEnded,
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
        prepare: Callable[[Path], None] = lambda _: None,
    ) -> Session:
        """Fork a process and prepare its sandbox and device, but import no model yet.

        Raises ForkServerError. This can run while a compiler builds the libraries: no code of the
        attempt runs before `import_model`. `attempt` is written to a folder that the session owns
        and removes. A candidate is confined in the sandbox at `tier`, where it may read none of the
        user's files outside that folder. The session ends as crashed if its processes occupy more
        than `memory_bytes` of memory, or more GPU memory than `model_spec.device_bytes`. `cores`
        are the processors that the processes may use; empty means all. `prepare` is called with the
        session's folder before the process starts, and may create files there.
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
            prepare(folder)
        policy = None
        if model_spec.arm == CANDIDATE:
            policy = Policy(
                write=(folder,),
                gpu=model_spec.device is Device.CUDA,
                fds=(0, 1, 2, 3),
                memory_bytes=memory_bytes,
                environment=tuple(given.items()),
            )
        limits = Limits(memory_bytes, model_spec.device_bytes, model_spec.kept_bytes)
        try:
            session = Session(fork_server, folder, given, policy, tier, limits)
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

    def load(
        self,
        weights: Arena,
        slot: int = 0,
        *,
        fresh: bool = True,
        several: bool = False,
        deadline_s: float = OPEN_S,
    ) -> None:
        """Load a slot's state dict into a new model if `fresh`, else into the current model.

        With `several` the process remembers large random fills of the construction, for further
        new models. Raises SessionEnded.
        """
        message = {"do": "load", "arena": self._lend(weights), "slot": slot}
        message |= {"fresh": fresh, "several": several}
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

        `deadline_s`: time limit of the block in seconds. `poison`: byte that fills the model's
        uninitialised allocations (None when timing). `flush`: number of bytes to overwrite before
        each call to evict the caches; counted in `wall_s` but not in `claimed_s`. `lead`: number of
        cycles that a GPU waits after that before the first call. `own`: copy each call's inputs to
        the worker's own memory before the call, not counted in `claimed_s`. `lean`: release the
        memory that the calls allocated, and omit repeated calls that need copies of outputs.
        `keep`: copy an output to its slot only after `keep` further calls, or after the last one.
        The caller poisons the outputs before and compares them after.
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
        synchronize(outputs.device)
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
        """Run timed calls: no poison, and no check in the worker except of the output's form.

        On a GPU inputs are copied to the worker's memory first, because a module is usually not
        called on another process's memory.
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

    def row(self, inputs: Arena, slot: int, calls: int, *, deadline_s: float) -> float:
        """Call forward `calls` times on the inputs of a slot, one call right behind the other, and
        wait for the GPU once. Return the seconds per call on the referee's clock.

        The outputs are dropped. Raises SessionEnded.
        """
        message = {"do": "row", "inputs": self._lend(inputs), "slot": slot, "calls": calls}
        _, wall = self._exchange(message, (), 1, deadline_s)
        return wall / calls

    def forget(self, arena: Arena) -> None:
        """Let the worker unmap an arena that was lent to it; call this before closing the arena."""
        if not self.closed and arena in self._lent:
            self._command({"do": "detach", "arena": self._lent.pop(arena)}, OPEN_S)

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
