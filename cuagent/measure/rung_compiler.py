"""Compile rungs of one task in advance, on a device that several judges share.

A record timing adds rungs that need autotuning. Their compilation starts in the background as soon
as an attempt may be the run's result, while further attempts are built and judged. On a device with
one judge the rungs' processes start in the background instead (`timing/ahead.py`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from cuagent.arms import COMPILE, GRAPH
from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage
from cuagent.measure.ladder import GRAPHS
from cuagent.measure.precompile import precompile
from cuagent.task import Device, Task
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.fork_server import Child

COMPILED_AHEAD_S = 60.0
"""Longest time in seconds that rungs may compile before a record timing."""


class RungCompiler:
    """Compiles rungs of one task in advance. For a large task it does nothing: its rungs compile
    when their processes start."""

    def __init__(
        self, task: Task, fork_server: ForkServer, device_lock: DeviceLock, *, large: bool
    ) -> None:
        self._task, self._fork_server, self._lock = task, fork_server, device_lock
        self._large = large
        self._begun: Future[tuple[str, ...]] | None = None

    def compile(self, names: tuple[str, ...], compiled: Collection[str] = ()) -> tuple[str, ...]:
        """Compile rungs; return those whose processes start in seconds afterwards.

        `compiled`: rungs that were compiled before. Raises ForkServerError.
        """
        if self._large:
            return names
        # A graph that cuagent captures needs no other code.
        done = [name for name in names if name.removesuffix(f"+{GRAPH}") in compiled]
        left = tuple(name for name in names if name not in done)
        found = precompile(self._task, left, self._fork_server, self._lock, COMPILED_AHEAD_S)
        return (*done, *found)

    def begin(self, names: tuple[str, ...]) -> None:
        """Start to compile rungs in the background; a second call does nothing."""
        if not names or self._begun is not None or self._lock.lock is None:
            return
        begun = self._begun = Future[tuple[str, ...]]()

        def work() -> None:
            try:
                begun.set_result(self.compile(names))
            except ForkServerError as error:
                begun.set_exception(error)

        # A daemon, because a run may end before the compilers do.
        threading.Thread(target=work, daemon=True).start()

    def compiled(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `names` that are compiled, after waiting for a compilation in the
        background.

        Compiles them now if `begin` was not called. Raises ForkServerError.
        """
        if self._begun is None:
            return self.compile(names)
        ready = self._begun.result()
        return tuple(name for name in names if name in ready)


class EarlyCompilation:
    """Compilation of the rungs that nearly every ladder has, while the task is still being
    certified and opened.

    A context manager; its end stops the compilation. `done` waits for it. Do not share the device
    lock while `done` is called, because the compilation may wait for that lock. Compiles nothing on
    a device with one judge, where rungs open in the background instead.
    """

    def __init__(self, task: Task, fork_server: ForkServer, device_lock: DeviceLock) -> None:
        self._task, self._fork_server = task, fork_server
        self._durations = device_lock.durations
        # Other stages go on meanwhile, so only the compilation's seconds count.
        self._lock = DeviceLock(device_lock.lock, uses=device_lock.uses)
        self._compiled: tuple[str, ...] = ()
        self._changing = threading.Lock()
        """Lock held while `_child` or `_ended` changes."""
        self._child: Child | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._compile, daemon=True)

    def done(self) -> tuple[str, ...]:
        """Wait for the compilation; return the rungs that were compiled."""
        if self._lock.lock is not None:
            self._thread.join()
        return self._compiled

    def __enter__(self) -> Self:
        if self._lock.lock is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._ended = True
            self._kill()
        self.done()

    def _compile(self) -> None:
        names = (COMPILE, GRAPHS) if self._task.device is Device.CUDA else (COMPILE,)
        # A fork server that died is reported by whoever uses it next.
        with suppress(ForkServerError):
            self._compiled = tuple(
                precompile(
                    self._task,
                    names,
                    self._fork_server,
                    self._lock,
                    COMPILED_AHEAD_S,
                    self._forked,
                )
            )
        seconds = self._lock.durations.seconds(Stage.COMPILING_AHEAD)
        self._durations.add(Stage.COMPILING_AHEAD, seconds)

    def _forked(self, child: Child) -> None:
        with self._changing:
            self._child = child
            if self._ended:
                self._kill()

    def _kill(self) -> None:
        if self._child is not None and self._thread.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
