"""Share one pool of judges with other processes of this machine, over a socket.

Several runs (seeds, arms) that train in parallel share the judging devices and the cache. Python's
multiprocessing managers carry the calls. Not covered: other machines; access by processes other
than children, which inherit the key.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING, Any, cast

from cuagent.attempt import Attempt
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.pool import JudgePool, PooledJudge
from cuagent.training.rehearsal import Rehearsal

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.ladder import Ladder
    from cuagent.measure.profile.profile import Profile


SERVED = ("judge", "judge_uncached", "profile", "measure_ladder")
"""Methods of the pool that clients may call."""


class _ClientManager(BaseManager):
    """Client side of the socket."""


_ClientManager.register("pool")


@contextmanager
def serve_pool(pool: JudgePool | Rehearsal) -> Iterator[str]:
    """Serve the pool inside this context; yield the address for `PoolClient` in child processes."""

    class ServerManager(BaseManager):
        pass

    ServerManager.register("pool", callable=lambda: pool, exposed=SERVED)
    server: Any = ServerManager(
        authkey=bytes(multiprocessing.current_process().authkey)
    ).get_server()
    streams = sys.stdout, sys.stderr
    thread = threading.Thread(target=_serve, args=(server,), daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop_event.set()
        thread.join()
        sys.stdout, sys.stderr = streams  # the server replaces them, as if it owned the process


def _serve(server: Any) -> None:
    with suppress(SystemExit):  # raised when the server stops
        server.serve_forever()


class PoolClient:
    """Client of a `JudgePool` in another process."""

    def __init__(self, address: str) -> None:
        manager: Any = _ClientManager(address, bytes(multiprocessing.current_process().authkey))
        manager.connect()
        self._pool = manager.pool()
        self._asked: set[tuple[str, str]] = set()
        self._count = 0

    @property
    def judged(self) -> int:
        """Number of distinct kernels that this client asked for."""
        return len(self._asked)

    @property
    def cache_hits(self) -> int:
        """Number of repeated requests of this client."""
        return self._count - len(self._asked)

    def open(self, tasks: Sequence[Task]) -> None:
        """Do nothing: the serving process opens the tasks."""

    def judge_for(self, task: Task) -> Judge:
        """Return the judge of an episode's run."""
        return PooledJudge(self, task)

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt in the serving process, with its cache."""
        self._count += 1
        self._asked.add((task.digest, attempt.digest))
        return cast("Judgement", self._pool.judge(task, attempt, timed))

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge in the serving process without its cache."""
        return cast("Judgement", self._pool.judge_uncached(task, attempt, effort))

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Profile in the serving process."""
        return cast("Profile", self._pool.profile(task, attempt, counters))

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Measure the ladder in the serving process, or return the earlier one."""
        return cast("Ladder", self._pool.measure_ladder(task, whole))
