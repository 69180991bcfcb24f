"""Compile rungs of one task in advance, on a device that several judges share.

A record timing adds rungs that need autotuning. Their compilation starts in the background as soon
as an attempt may be the run's result, while further attempts are built and judged. On a device with
one judge the rungs' processes start in the background instead (`timing/ahead.py`).
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from cuagent.device_lock import DeviceLock
from cuagent.measure.precompile import precompile
from cuagent.task import Task
from cuagent.worker import ForkServer, ForkServerError

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

    def compile(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Compile rungs; return those whose processes start in seconds afterwards. Raises
        ForkServerError."""
        if self._large:
            return names
        found = precompile(self._task, names, self._fork_server, self._lock, COMPILED_AHEAD_S)
        return tuple(found)

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
