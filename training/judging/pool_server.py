"""Share one pool of judges with other processes of this machine, over a socket.

Several runs (seeds, arms) that train in parallel share the judging devices and the cache. Python's
multiprocessing managers transfer the calls. Only child processes can connect, because they inherit
the authentication key.
Not covered: other machines.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING, Any, cast

from cuagent.attempt import Attempt
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.judging.pool import JudgePool, RemotePool

if TYPE_CHECKING:
    from cuagent.judgement import Judgement


SERVED = ("judge", "judge_uncached", "profile", "measure_ladder")
"""Names of the pool's methods that clients may call."""


class _ClientManager(BaseManager):
    """Connection of a client; methods of its object `pool` run in the serving process."""


_ClientManager.register("pool")


@contextmanager
def serve_pool(pool: JudgePool | Rehearsal) -> Iterator[str]:
    """Serve the pool inside this context; yield the address with which child processes create a
    `PoolClient`."""

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
        sys.stdout, sys.stderr = streams  # the server has replaced them


def _serve(server: Any) -> None:
    with suppress(SystemExit):  # raised when the server stops
        server.serve_forever()


class PoolClient(RemotePool):
    """A `Pool` that forwards its requests to a `JudgePool` in another process of this machine."""

    def __init__(self, address: str) -> None:
        super().__init__()
        manager: Any = _ClientManager(address, bytes(multiprocessing.current_process().authkey))
        manager.connect()
        self._pool = manager.pool()

    def ask(self, method: str, task: Task, *arguments: Any) -> Any:
        """Call a method of the pool in the serving process; return its result."""
        return getattr(self._pool, method)(task, *arguments)

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge an attempt in the serving process, without the cache."""
        return cast("Judgement", self.ask("judge_uncached", task, attempt, effort))
