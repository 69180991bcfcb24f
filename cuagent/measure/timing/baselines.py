"""Keep the baselines' processes warm between timings, and the inputs that all arms use.

"Open" here means: start the process, import the task, load weights and make the first call. Not
covered: the candidate, which has a fresh process in each round (`timer.py`).

Invariant: a baseline whose process was lost twice, or that does not open, is not timed again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from cuagent.arms import EAGER
from cuagent.device_lock import ALONE, DeviceLock, Sharing
from cuagent.durations import Stage
from cuagent.events import Emit, Phase
from cuagent.measure.timing.ahead import OpenedAhead, Patience
from cuagent.measure.timing.parts import fit_together
from cuagent.measure.timing.repeats import clock
from cuagent.measure.timing.rounds import TWIN
from cuagent.measure.timing.surroundings import compiled_graphs, cores_of, free_memory, slots_for
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.task import Device
from cuagent.verify.batch import Batch
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session, SessionEnded, Status
from cuagent.worker.giving_way import DRAIN_S, POLL_S, run_giving_way

FRESH_IF_OPENED_IN_S = {Device.CPU: 2.0, Device.CUDA: 0.5}
"""Seconds; a baseline that opens faster than this gets a fresh process for every timing. The CPU's
limit is higher so that eager is always below it: other processes may make it open three times as
slowly."""
COMPILE_S = 900.0
"""Time limit in seconds for a baseline's first call, in which torch.compile compiles."""
AUTOTUNED = "max-autotune"
"""Text in the names of rungs with torch's autotuning."""
STALL_S = 5.0
"""Seconds that a baseline may take to open while those in the background are stopped. Then these
run again, because one of them may hold a lock of torch's cache that the baseline waits for."""
TOGETHER = (Device.CUDA,)
"""Devices on which baselines open at the same time. On a CPU they would take each other's
processors."""
TUNED = (AUTOTUNED, "cudnn_benchmark")
"""Texts in the names of rungs that try kernels when they open."""
LEAST_DRAIN_S, DRAINED_CALLS = 0.1, 10
"""Seconds, and number of calls of the reference, in which a GPU finishes the work of stopped
processes that try no kernels."""
OPENED_AT_ONCE = {Device.CPU: 1, Device.CUDA: 4}
"""Number of baselines that open in the background at the same time."""


class Baselines:
    """The processes of a task's baselines, opened when they are needed. `close` ends them."""

    def __init__(
        self, referee: Referee, names: Sequence[str], emit: Emit, device_lock: DeviceLock
    ) -> None:
        self.referee = referee
        self.device_lock = device_lock
        self.durations = device_lock.durations
        self.names = tuple(names)
        self.device = referee.task.device
        self.cores = cores_of(referee)
        self.failed: dict[str, str] = {}
        """Reason for each baseline that is not timed any more."""
        self.draw_s = 0.0
        """Seconds to draw one input set."""
        self._emit = emit
        self._warm: dict[str, TimedArm] = {}
        self._begun: set[str] = set()
        """Baselines that had a process, so that their graphs are in the cache of compiled code."""
        self._lost: set[str] = set()
        """Baselines whose process ended once while it was timed."""
        self._batch: Batch | None = None
        self._kept: tuple[str, ...] = ()
        self._ahead: OpenedAhead | None = None
        self.were_opened = False
        """True if the baselines have been opened once, so compile times and failures are known."""

    @property
    def warm(self) -> bool:
        """True if any baseline has an open process."""
        return bool(self._warm)

    @property
    def batch(self) -> Batch:
        """The batch of inputs and outputs that the warm processes use; made if there is none."""
        return self._batch or self.batch_with_fresh_inputs()

    def opened(self) -> dict[str, TimedArm]:
        """Return the baselines that have an open process, by name."""
        return {name: timed_arm for name, timed_arm in self._warm.items() if name != TWIN}

    def set_baselines(self, names: Sequence[str]) -> None:
        """Choose the baselines to time. End all other processes, except those given to `keep`.

        `timed_arms` then opens the processes that are missing.
        """
        self.names = tuple(names)
        self._end(self._warm.keys() - {*self.names, *self._kept, TWIN})

    def keep(self, names: Sequence[str]) -> None:
        """Let the processes of these baselines stay open for a later timing, even while others are
        timed."""
        self._kept = tuple(names)

    def open_ahead(self, names: Sequence[str]) -> None:
        """Start to open baselines in the background; skip those that are open or have failed."""
        if self._ahead is None:
            batch = self.batch
            slot = batch.inputs.count - 1
            call = [(slot, slot)]

            def first_call(_: str, session: Session) -> None:
                # Timings may pause the process, so even its weights may take long to load.
                self.referee.processes.finish_reference(session, COMPILE_S)
                session.block(batch.lent, batch.outputs, call, deadline_s=COMPILE_S)

            self._ahead = OpenedAhead(
                self._fork,
                first_call,
                OPENED_AT_ONCE[self.device],
                self._count_opening,
                yields=self.device is Device.CUDA,
            )
        self._ahead.start([n for n in names if n not in self._warm and n not in self.failed])

    def _count_opening(self, name: str, seconds: float) -> None:
        tunes = AUTOTUNED in name
        self.durations.add(Stage.AUTOTUNING if tunes else Stage.COMPILING_AHEAD, seconds)

    def open_together(self) -> None:
        """On a GPU, start to open all missing baselines at the same time.

        Most of a first call is the compiler's work there, which leaves the GPU idle. On a CPU they
        would take each other's processors. Eager is left out, because it opens quickly, and afresh
        for each timing.
        """
        missing = [n for n in self.names if n not in self._warm and n not in (EAGER, *self.failed)]
        if self.device is Device.CUDA and len(missing) > 1:
            self.open_ahead(missing)

    def still_opening(self, names: Sequence[str], patience: Patience) -> tuple[str, ...]:
        """Wait as `patience` says; return those of `names` that are still opening in the
        background."""
        return self._ahead.late(names, patience) if self._ahead is not None else ()

    def give_up(self, names: Sequence[str]) -> None:
        """End the background processes of `names`, which are not timed any more."""
        if self._ahead is not None:
            self._ahead.discard(names)

    def await_opening(self) -> None:
        """Wait until no baseline to be timed is still opening in the background."""
        ahead = self._ahead
        for name in self.names if ahead is not None else ():
            if ahead is not None and name in ahead:
                self._emit(Phase(f"timing: opening {name}"))
                ahead.unfinished([name], COMPILE_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the processes that are opening in the background until the block ends."""
        if self._ahead is None:
            yield
            return
        with self._ahead.paused():
            if self._ahead.is_opening and self.device is Device.CUDA:
                time.sleep(DRAIN_S)
            yield

    @contextmanager
    def opening_paused(self, needed: Sequence[str]) -> Iterator[None]:
        """Stop the processes that are opening in the background until the block ends.

        Nothing is stopped while one of the baselines `needed` is among them.
        """
        if self._ahead is None or self._ahead.unfinished(needed, 0):
            yield
            return
        with self._ahead.paused():
            yield

    def batch_with_fresh_inputs(self) -> Batch:
        """Return the batch, with newly drawn inputs in its last slot, which is for warming up.

        They are drawn after the attempt was frozen.
        """
        if self._batch is None:
            self._batch = self.referee.batches.create(1 + slots_for(self.referee), filled=False)
        begun = time.perf_counter()
        self.referee.batches.refill(self._batch, [self._batch.inputs.count - 1])
        self.draw_s = time.perf_counter() - begun
        return self._batch

    def timed_arms(
        self,
        batch: Batch,
        sharing: Sharing = ALONE,
        beside: Sequence[Session] = (),
    ) -> dict[str, TimedArm]:
        """Return a warmed-up timed arm for each baseline, opening those that have no process.

        Baselines that fail are left out. On the CPU a second eager process (`TWIN`) is added. The
        device is held by `sharing`. If a timing waits, processes that open are stopped meanwhile,
        and so are the new processes of the sessions `beside`.
        """
        timed_arms = {}
        names = self.names
        if self.device is Device.CPU and EAGER in names:
            names = (*names, TWIN)
        if self.device_lock.lock is None:
            self._open_in_parallel(batch)
        else:
            self._open_giving_way(batch, sharing, beside)
        for name in names:
            if name in self.failed:
                continue
            if name not in self._warm and not beside:  # a large task opens one after the other
                sharing()
            if (timed_arm := self._open_and_warm(name, batch, sharing)) is not None:
                timed_arms[name] = timed_arm
        self.were_opened = True
        return timed_arms

    def drop_ended(self, why: str) -> bool:
        """Forget the processes that have ended; return True if there were any.

        A baseline that lost its process for the second time is not timed again; `why` is stored as
        the reason.
        """
        ended_names = [name for name, timed_arm in self._warm.items() if timed_arm.session.closed]
        for name in ended_names:
            del self._warm[name]
            if name in self._lost:
                self.failed[name] = why
            self._lost.add(name)
        return bool(ended_names)

    def renew(self, allowed_s: float) -> None:
        """End the processes that opened in less than `allowed_s` seconds; the next timing opens
        fresh ones. A process that was in no timing yet is fresh.

        One eager process kept for twelve timings measured 1.52 times slower than each fresh
        candidate on a machine with 16 cores; the cause is unknown (docs/concepts/timing.md). So
        eager's process is as new as the candidate's in each timing.
        """
        warm = self._warm.items()
        self._end([n for n, arm in warm if arm.was_timed and arm.opened_s < allowed_s])

    def note_timed(self, names: Iterable[str]) -> None:
        """Note that the processes of these baselines are timed now, so that they are not fresh."""
        for name in self._warm.keys() & set(names):
            self._warm[name].was_timed = True

    def end(self, name: str) -> None:
        """End a baseline's process, if it has one, so that the next timing opens a fresh one."""
        self._end([name] if name in self._warm else [])

    def _end(self, names: Iterable[str]) -> None:
        """End the processes of baselines that have one.

        All are killed before the first is waited for: a driver releases the memory of each.
        """
        sessions = [self._warm.pop(name).session for name in names]
        for session in sessions:
            if not session.closed:
                with suppress(ProcessLookupError):
                    os.killpg(session.pid, signal.SIGKILL)
        for session in sessions:
            session.close()

    @property
    def will_open_together(self) -> bool:
        """True if the baselines without a process open at the same time in the next timing."""
        return bool(self._missing())

    def close(self) -> None:
        """End all processes and free the memory of the batch. A second call does nothing."""
        if self._ahead is not None:
            self._ahead.end()
            self._ahead = None
        while self._warm:  # a thread that was interrupted while it opened one may still add it
            self._end(list(self._warm))
        self.were_opened = False
        if self._batch is not None:
            self.referee.batches.discard(self._batch)
            self._batch = None

    def _open_and_warm(self, name: str, batch: Batch, sharing: Sharing) -> TimedArm | None:
        """Return the warmed-up timed arm of one baseline, opened if necessary; None if it fails.

        If its process has ended or was lost, it is opened once more.
        """
        for is_last_try in (False, True):
            try:
                with self._background_after(STALL_S):
                    if name not in self._warm:
                        self._warm[name] = self._open(name, batch, sharing)
                    warm_arm = self._warm[name]
                    return warmed(name, warm_arm.session, batch, opened_s=warm_arm.opened_s)
            except SessionEnded as error:
                was_open = self._warm.pop(name, None) is not None
                if is_last_try or not (was_open or error.status is Status.LOST):
                    self.failed[name] = str(error)
                    break
        return None

    def _background_after(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext() if self._ahead is None else self._ahead.running_after(seconds)

    def _missing(self) -> list[str]:
        """Return the baselines to open at the same time, without warming them up.

        On a GPU a process takes one to three seconds to open, and every round of a record timing
        opens some. If one fails, `_open_and_warm` tries it again and reports a failure.
        """
        if self.device not in TOGETHER:
            return []
        known = {*self._warm, *self.failed, *self._opening_ahead}
        missing = [name for name in self.names if name not in known]
        fit = fit_together(self.referee, len(missing), len(self.names) + 1)
        return missing if fit else []

    @property
    def _opening_ahead(self) -> set[str]:
        return {name for name in self.names if self._ahead is not None and name in self._ahead}

    def _open_giving_way(self, batch: Batch, sharing: Sharing, beside: Sequence[Session]) -> None:
        """Open the missing baselines at the same time. If a timing waits for the device, stop them
        until it is free again."""
        missing = self._missing()
        if not missing:
            return
        opening = OpenedAhead(self._fork, partial(self._first_call, batch), len(missing))
        try:
            opening.start(missing)
            while opening.unfinished(missing, POLL_S):
                if self.device_lock.is_awaited:
                    with opening.paused(beside) as stopped:
                        if stopped:
                            time.sleep(drain_s(self.device, missing, self.referee.facts.call_s))
                            sharing()
            for name in missing:
                with suppress(SessionEnded, ForkServerError):
                    self._warm[name] = opening.take(name)
        finally:
            opening.end()

    def _first_call(self, batch: Batch, name: str, session: Session) -> None:
        """Load the weights of a baseline and make its first call, in which torch.compile
        compiles."""
        self.referee.processes.finish_reference(session, COMPILE_S)
        slot = batch.inputs.count - 1
        outputs = batch.outputs_of(name)
        session.block(batch.lent, outputs, [(slot, slot)], deadline_s=COMPILE_S)

    def _open_in_parallel(self, batch: Batch) -> None:
        """Open the missing baselines at the same time, if there are several."""
        missing = self._missing()
        if len(missing) < 2:
            return
        with ThreadPoolExecutor(len(missing)) as threads:
            opening = {name: threads.submit(self._opened, name, batch) for name in missing}
        for name, future in opening.items():
            if future.exception() is None:
                self._warm[name] = future.result()

    def _opened(self, name: str, batch: Batch) -> TimedArm:
        """Open a baseline: start its process and make its first call, in which torch.compile
        compiles."""
        begun = time.perf_counter()
        session = self._fork(name)
        try:
            self._first_call(batch, name, session)
        except BaseException:
            session.close()
            raise
        return TimedArm(name, session, time.perf_counter() - begun)

    def _fork(self, name: str) -> Session:
        arm, graphs = EAGER if name == TWIN else name, compiled_graphs(again=name in self._begun)
        self._begun.add(name)
        return self.referee.processes.begin_reference(arm, environment=graphs, cores=self.cores)

    def _open(self, name: str, batch: Batch, sharing: Sharing) -> TimedArm:
        if self._ahead is not None and name in self._ahead:
            return self._ahead.take(name)
        if name != TWIN:
            self._emit(Phase(f"timing: opening {name}"))
        free = free_memory(self.device)
        begun = time.perf_counter()
        session = self._fork(name)
        open_it = partial(self._first_call, batch, name, session)
        given_away_s = run_giving_way(open_it, session, sharing)
        opened_s = time.perf_counter() - begun - given_away_s
        timed_arm = warmed(name, session, batch, opened_s=opened_s)
        timed_arm.memory = None if free is None else free - (free_memory(self.device) or 0)
        return timed_arm


def drain_s(device: Device, opening: Sequence[str], call_s: float) -> float:
    """Return the seconds in which the device finishes what these baselines have queued, after they
    were stopped while they opened.

    Opening makes a few calls (`call_s`: seconds of one), whose work shares a GPU with that of other
    stopped processes.
    """
    if device is Device.CPU:
        return 0.0
    if any(text in name for name in opening for text in TUNED):
        return DRAIN_S
    return min(DRAIN_S, LEAST_DRAIN_S + DRAINED_CALLS * call_s)


def warmed(
    name: str,
    session: Session,
    batch: Batch,
    begun: float | None = None,
    opened_s: float = 0.0,
) -> TimedArm:
    """Call a session's model some times and return it as a timed arm, with a rough time per call.

    If the model was not called yet, `begun` is the time at which its opening started. Otherwise
    `begun` is None and `opened_s` is the duration of its opening in seconds.
    """
    slot = batch.inputs.count - 1
    timed_arm = TimedArm(name, session, opened_s)
    if begun is not None:
        outputs = batch.outputs_of(name)
        session.block(batch.lent, outputs, [(slot, slot)], deadline_s=COMPILE_S)
        timed_arm.opened_s = time.perf_counter() - begun
    for _ in range(1 if batch.lean else 3):
        timed_arm.blocks.append(clock(timed_arm, batch, [slot]))
    return timed_arm
