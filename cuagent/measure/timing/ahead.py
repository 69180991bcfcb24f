"""Start baselines in the background, so that torch.compile works while nothing is timed.

For each baseline a thread drives the process: it imports the task, loads the weights and makes the
first call, in which torch.compile compiles. `paused` stops all these processes for a timing. Not
covered: baselines that a timing starts itself (`baselines.py`).

Invariant: while paused, no process that was started here computes.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cuagent.arms import same_code
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.worker import Session
from cuagent.worker.priority import lower_compilers

LOWERED_EVERY_S = 0.5
"""Seconds between two searches for new compilers."""
LOOK_S = 0.1
"""Seconds between two looks at the time that baselines have been opening."""


@dataclass(frozen=True)
class Patience:
    """Limits of a wait for baselines that open in the background."""

    seconds: float
    """Longest wait in seconds."""
    opening_s: float = math.inf
    """Seconds that a baseline may take to open in all, without pauses. One that took longer is
    waited for only as long as another one that has not, and for `least_s`."""
    least_s: float = 0.0
    """Shortest wait in seconds for baselines that are not open."""


Begin = Callable[[str], Session]
"""Function that forks the process of the baseline with the given name. Raises ForkServerError."""
FirstCall = Callable[[str, Session], None]
"""Function that loads the weights of the model of the baseline with the given name and calls it
once. Raises SessionEnded."""

Opened = Callable[[str, float], None]
"""Callback for a baseline that is ready or has failed: its name, and the seconds that this took."""


class OpenedAhead:
    """Baselines whose processes start in the background. `take` hands one to the caller; `end`
    kills all others.

    With `yields` their compilers leave the processors to others that want them.
    """

    def __init__(
        self,
        begin: Begin,
        first_call: FirstCall,
        workers: int,
        opened: Opened = lambda *_: None,
        *,
        yields: bool = False,
    ) -> None:
        self._begin, self._first_call, self._opened = begin, first_call, opened
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="cuagent-opening")
        self._futures: dict[str, Future[TimedArm]] = {}
        self._sessions: dict[str, Session] = {}
        self._opening = threading.Lock()
        """Lock held while a process is forked, which cannot be paused yet, and while `_sessions`
        changes."""
        self._running = threading.Event()
        self._running.set()
        self._ended = False
        self._discarded: set[str] = set()
        self._paused_s = self._stopped_at = 0.0
        self._begun: dict[str, tuple[float, float]] = {}
        """Time at which each process was forked, and the seconds of pauses until then."""
        self._yields = yields
        self._finished = threading.Event()

    def start(self, names: Sequence[str]) -> None:
        """Start these baselines in the background, in this order; skip those that were started
        before.

        A baseline whose compiled code another one leaves in the cache comes last, and waits for it.
        At the same time both would compile the whole graph.
        """
        for name in sorted(names, key=lambda name: bool(same_code(name))):
            if name not in self._futures and not self._ended:
                before = self._futures.get(same_code(name))
                self._begun.pop(name, None)
                self._futures[name] = self._pool.submit(self._open, name, before)
        if self._yields and names:
            self._yields = False  # one thread suffices
            threading.Thread(target=self._lower_compilers, daemon=True).start()

    def _lower_compilers(self) -> None:
        """Lower the priority of the compilers that the processes start, until `end`."""
        while not self._finished.wait(LOWERED_EVERY_S):
            if not self._running.is_set():  # a timing runs, which this thread would disturb
                continue
            with self._opening:
                opening = [session.pid for session in self._sessions.values()]
            for pid in opening:
                lower_compilers(pid)

    def __contains__(self, name: str) -> bool:
        return name in self._futures

    def unfinished(self, names: Sequence[str], seconds: float) -> tuple[str, ...]:
        """Wait at most `seconds` for these baselines; return the names of those that are not
        ready."""
        found = {name: self._futures[name] for name in names if name in self._futures}
        # `wait` would wait for a cancelled one until its turn comes.
        opening = {name: future for name, future in found.items() if not future.done()}
        wait(opening.values(), timeout=seconds)
        return tuple(name for name, future in opening.items() if not future.done())

    def late(self, names: Sequence[str], patience: Patience) -> tuple[str, ...]:
        """Wait for these baselines as `patience` says; return the names of those that are not
        ready."""
        started = time.perf_counter()
        while late := self.unfinished(names, min(LOOK_S, patience.seconds)):
            waited = time.perf_counter() - started
            if waited >= patience.seconds or (
                waited >= patience.least_s and self._least_opening_s(late) > patience.opening_s
            ):
                return late
        return ()

    def _least_opening_s(self, names: Sequence[str]) -> float:
        """Return the seconds, without pauses, that the process of `names` that was forked last has
        been opening; 0 if one waits for its turn."""
        now = time.perf_counter()
        if any(name not in self._begun for name in names):
            return 0.0
        running = [self._begun[name] for name in names]
        return min((now - at - (self._paused_s - paused) for at, paused in running), default=0.0)

    @property
    def is_opening(self) -> bool:
        """True if a baseline is starting now or waits for its turn."""
        return any(not future.done() for future in self._futures.values())

    def take(self, name: str) -> TimedArm:
        """Wait until a baseline is ready and return it; the caller then owns its session.

        Raises SessionEnded, ForkServerError.
        """
        try:
            return self._futures.pop(name).result()
        finally:
            with self._opening:
                if (session := self._sessions.pop(name, None)) is not None:
                    session.unpause()

    @contextmanager
    def paused(self, beside: Sequence[Session] = ()) -> Iterator[bool]:
        """Stop the processes that are starting here, and those of the sessions `beside`, until the
        block ends. Yields False if one cannot be stopped."""
        with self._opening:
            stopped = self._stop(beside)
        try:
            yield stopped
        finally:
            with self._opening:
                self._continue(beside)

    @contextmanager
    def running_after(self, seconds: float) -> Iterator[None]:
        """Context inside `paused` in which a process is started: if that takes longer than
        `seconds`, the stopped processes run until the block ends.

        A stopped process may hold a lock of a compiler's cache that the starting one waits for.
        """
        if self._running.is_set():
            yield
            return
        again = threading.Event()

        def run() -> None:
            with self._opening:
                again.set()
                self._continue()

        timer = threading.Timer(seconds, run)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if again.is_set():
                with self._opening:
                    self._stop()

    def _stop(self, beside: Sequence[Session] = ()) -> bool:
        """Stop all processes; return False if one cannot be stopped. `_opening` must be held."""
        self._running.clear()
        self._stopped_at = time.perf_counter()
        stopped = [session.pause() for session in (*self._sessions.values(), *beside)]
        return all(stopped)

    def _continue(self, beside: Sequence[Session] = ()) -> None:
        """Let all processes run again. `_opening` must be held."""
        self._paused_s += time.perf_counter() - self._stopped_at
        for session in (*self._sessions.values(), *beside):
            session.unpause()
        self._running.set()

    def discard(self, names: Sequence[str]) -> None:
        """Kill the processes of these baselines, which will not be taken, so that they no longer
        use processors. Their threads end when the processes are gone."""
        with self._opening:
            self._discarded.update(names)
            for name in names:
                if name in self._futures:
                    self._futures[name].cancel()
                if (session := self._sessions.get(name)) is not None:
                    with suppress(ProcessLookupError):
                        os.killpg(session.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the processes that `take` did not hand out, and wait for the threads.

        A second call does nothing.
        """
        self._finished.set()
        with self._opening:
            self._ended = True
            for session in self._sessions.values():
                with suppress(ProcessLookupError):
                    # The thread that waits for the process closes the session.
                    os.killpg(session.pid, signal.SIGKILL)
            self._running.set()
        self._pool.shutdown(cancel_futures=True)
        for future in self._futures.values():
            with suppress(CancelledError):
                if future.exception() is None:  # a failed baseline has no session to close
                    future.result().session.close()
        self._futures.clear()
        self._sessions.clear()

    def _open(self, name: str, before: Future[TimedArm] | None = None) -> TimedArm:
        if before is not None:
            wait([before])
        while True:
            self._running.wait()
            with self._opening:
                if self._ended or name in self._discarded:
                    raise CancelledError
                if self._running.is_set():
                    begun, paused = self._begun[name] = time.perf_counter(), self._paused_s
                    session = self._begin(name)
                    self._sessions[name] = session
                    break
        try:
            try:
                self._first_call(name, session)
            finally:
                seconds = time.perf_counter() - begun - (self._paused_s - paused)
                self._opened(name, seconds)
        except BaseException:
            with self._opening:
                self._sessions.pop(name, None)  # another process may soon have its id
                session.close()  # no caller of `take` or `end` gets this session
            raise
        return TimedArm(name, session, seconds)
