"""A pool of judges lent to other processes of this machine, over a socket.

For: several runs (seeds, arms) that train beside each other and share the devices that judge, and
what was judged. Python's own managers carry the calls. Not covered: other machines; who may ask,
beyond the children of the lender, which inherit its key.
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
    from cuagent.measure.profile.profile import Profile


class _ClientManager(BaseManager):
    """Where the pool is asked for."""


_ClientManager.register("pool")


@contextmanager
def serve_pool(pool: JudgePool | Rehearsal) -> Iterator[str]:
    """While it lasts, the address under which children borrow the pool."""

    class ServerManager(BaseManager):
        pass

    ServerManager.register(
        "pool", callable=lambda: pool, exposed=("judge", "judge_uncached", "profile")
    )
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
        sys.stdout, sys.stderr = streams  # the server, made for a process of its own, resets them


def _serve(server: Any) -> None:
    with suppress(SystemExit):  # how it ends
        server.serve_forever()


class PoolClient:
    """`JudgePool` of another process, for as long as it is lent there."""

    def __init__(self, address: str) -> None:
        manager: Any = _ClientManager(address, bytes(multiprocessing.current_process().authkey))
        manager.connect()
        self._pool = manager.pool()
        self._asked: set[tuple[str, str]] = set()
        self._count = 0

    @property
    def judged(self) -> int:
        """Different kernels asked for here, whoever else had asked for them."""
        return len(self._asked)

    @property
    def cache_hits(self) -> int:
        """Questions asked again here."""
        return self._count - len(self._asked)

    def open(self, tasks: Sequence[Task]) -> None:
        """Nothing: the lender sees to it."""

    def judge_for(self, task: Task) -> Judge:
        """As `JudgePool.judge_for`."""
        return cast("Judge", PooledJudge(self, task))

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """As `JudgePool.judge`, remembered there."""
        self._count += 1
        self._asked.add((task.digest, attempt.digest))
        return cast("Judgement", self._pool.judge(task, attempt, timed))

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """As `JudgePool.afresh`."""
        return cast("Judgement", self._pool.judge_uncached(task, attempt, effort))

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """As `JudgePool.profile`."""
        return cast("Profile", self._pool.profile(task, attempt))
