"""Compile rungs of one task in advance, on a device that several judges share.

A record timing adds rungs that need autotuning. Their compilation starts in the background of the
first verification, while attempts are built and judged. On a device with
one judge the rungs' processes start in the background instead (`timing/ahead.py`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Self

from cuagent.arms import COMPILE, EAGER, GRAPH
from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage
from cuagent.measure.ladder import GRAPHS
from cuagent.measure.precompile import TUNED, precompile
from cuagent.task import Device, Task
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.fork_server import Child

COMPILED_AHEAD_S = 60.0
"""Longest time in seconds that rungs may compile before a record timing."""


UNAWAITED_S, AWAITED_S, LEAST_WAIT_S = 120.0, 75.0, 15.0
"""Times in seconds for rungs that compile in the background of other work.

They may compile for the first; a record timing waits for them until the second has passed since
their start, but at least for the third. They have more time than `COMPILED_AHEAD_S`, because
autotuning gives the device up while others work.
"""
SPLIT_AFTER_S = 5.0
"""Seconds after which a second process compiles the rungs that a first one has not begun. A small
graph is compiled by then; one of 700 operators took 50 s for each rung."""


class Compilers:
    """The processes that compile rungs now. `end` kills them, and those that start later."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._ended = False
        self._changing = threading.Lock()
        """Mutex of the fields above. It is held while a process is killed: until it is removed, no
        other process gets its id."""

    def add(self, child: Child) -> None:
        """Note a process that has started."""
        with self._changing:
            self._children.append(child)
            if self._ended:
                self._kill(child)

    def remove(self, child: Child) -> None:
        """Note that a process will be ended by the thread that waits for it."""
        with self._changing:
            self._children.remove(child)

    def end(self) -> None:
        """Kill all processes; the threads that wait for them then return."""
        with self._changing:
            self._ended = True
            for child in self._children:
                self._kill(child)

    def _kill(self, child: Child) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def compile_rungs(
    task: Task,
    names: Sequence[str],
    fork_server: ForkServer,
    lock: DeviceLock,
    compilers: Compilers | None = None,
    limit_s: float | None = None,
) -> tuple[str, ...]:
    """Compile rungs in one process, or in two if they take long (`SPLIT_AFTER_S`); return those
    that are compiled, and those that need no compiler.

    `compilers` lists the processes meanwhile. Each process ends after `limit_s` seconds, by default
    `COMPILED_AHEAD_S`. Raises ForkServerError.
    """
    left = [name for name in names if name.partition("+")[0] != EAGER]
    changing = threading.Lock()
    given: list[str] = []

    def goes_on(name: str) -> bool:
        with changing:
            if name in left:
                left.remove(name)
            return bool(left)

    def compile_in_one(names: Sequence[str], goes_on: Callable[[str], bool]) -> list[str]:
        most_s = COMPILED_AHEAD_S if limit_s is None else limit_s
        listed = compilers or Compilers()
        return precompile(task, tuple(names), fork_server, lock, most_s, listed, goes_on)

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(compile_in_one, names, goes_on)
        wait([first], SPLIT_AFTER_S)
        with changing:
            if not first.done() and not any(TUNED in name for name in left):
                given, left[1:] = left[1:], []
        second = compile_in_one(given, lambda _: True) if given else []
        found = {*first.result(), *second}
    return tuple(name for name in names if name in found)


class RungCompiler:
    """Compiles rungs of one task in advance. For a large task it does nothing: its rungs compile
    when their processes start."""

    def __init__(
        self, task: Task, fork_server: ForkServer, device_lock: DeviceLock, *, large: bool
    ) -> None:
        self._task, self._fork_server, self._lock = task, fork_server, device_lock
        self._large = large
        self._begun: list[Future[tuple[str, ...]]] = []
        self._began = 0.0
        """Time of the monotonic clock at which the compilation in the background began."""
        self._compilers = Compilers()

    def compile(self, names: tuple[str, ...], compiled: Collection[str] = ()) -> tuple[str, ...]:
        """Compile rungs; return those whose processes start in seconds afterwards.

        `compiled`: rungs that were compiled before. Raises ForkServerError.
        """
        if self._large:
            return names
        # A graph that cuagent captures needs no other code.
        done = [name for name in names if name.removesuffix(f"+{GRAPH}") in compiled]
        left = tuple(name for name in names if name not in done)
        return (*done, *compile_rungs(self._task, left, self._fork_server, self._lock))

    def begin(self, names: tuple[str, ...]) -> None:
        """Start to compile rungs in the background; a second call does nothing.

        Rungs with autotuning take longest, so another process compiles the rest meanwhile.
        """
        if not names or self._begun or self._lock.lock is None:
            return
        tuned = tuple(name for name in names if TUNED in name)
        groups = [tuned, tuple(name for name in names if name not in tuned)]
        self._began = time.monotonic()
        self._begun = [self._begin(group) for group in groups if group]

    def _begin(self, names: tuple[str, ...]) -> Future[tuple[str, ...]]:
        begun = Future[tuple[str, ...]]()

        def work() -> None:
            try:
                begun.set_result(
                    names
                    if self._large
                    else compile_rungs(
                        *(self._task, names, self._fork_server, self._lock),
                        *(self._compilers, UNAWAITED_S),
                    )
                )
            except ForkServerError as error:
                begun.set_exception(error)

        # A daemon, because a run may end before the compilers do.
        threading.Thread(target=work, daemon=True).start()
        return begun

    def compiled(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `names` that are compiled, after waiting for a compilation in the
        background.

        It waits until `AWAITED_S` seconds after the compilation began, and at least `LEAST_WAIT_S`.
        Compiles the rungs now if `begin` was not called. Raises ForkServerError.
        """
        if not self._begun:
            return self.compile(names)
        left_s = self._began + AWAITED_S - time.monotonic()
        wait(self._begun, max(LEAST_WAIT_S, left_s))
        self._compilers.end()
        ready = {name for begun in self._begun for name in begun.result()}
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
        self._compilers = Compilers()
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
        self._compilers.end()
        self.done()

    def _compile(self) -> None:
        names = (COMPILE, GRAPHS) if self._task.device is Device.CUDA else (COMPILE,)
        # A fork server that died is reported by its next user.
        with suppress(ForkServerError):
            self._compiled = compile_rungs(
                self._task, names, self._fork_server, self._lock, self._compilers
            )
        seconds = self._lock.durations.seconds(Stage.COMPILING_AHEAD)
        self._durations.add(Stage.COMPILING_AHEAD, seconds)
