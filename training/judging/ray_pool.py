"""Judge on many machines: Ray actors, each with a pool for one timing GPU (`cuagent[train-ray]`).

It is meant for rollouts that need more verdicts than one machine provides, and for training by
verl, whose processes share named actors.
Not covered: starting a Ray cluster; without one (RAY_ADDRESS) Ray starts on this machine alone.
Task files must be in a folder that all machines see.
Invariant: an actor has a whole GPU, so nothing else runs there during a timing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.config import ConfigError
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.judging.pool import JudgePool, RemotePool

NAMESPACE = "cuagent"
"""Ray namespace of the actors that several pools share."""
MAX_CONCURRENCY = 16
"""Largest number of concurrent calls of an actor: one call times, the others compile or wait."""


class JudgeActor:
    """Class of the Ray actors; an actor has the judging pool of one device."""

    def __init__(self, effort: Effort | None, isolation: str) -> None:
        self.pool = JudgePool(effort, isolation)  # Ray shows an actor its own GPU only

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call method `what` of the pool; return its result, or the error as a value for the caller
        to raise.

        Ray would change the type of an error that the actor raises.
        """
        from cuagent.measure.profile.profile import ProfileError

        try:
            return getattr(self.pool, what)(*arguments)
        except (PoolError, ProfileError) as error:
            return error

    def close(self) -> None:
        self.pool.__exit__(None, None, None)


class Seats:
    """Round-robin assignment of tasks to actors: first the tasks known at creation, then others in
    order of arrival.

    Known tasks are sorted by digest, so every process that shares the actors assigns them alike.
    """

    def __init__(self, actors: int, digests: Sequence[str] = ()) -> None:
        self.actors = actors
        self._places = {digest: n for n, digest in enumerate(sorted(set(digests)))}
        self._lock = threading.Lock()

    def of(self, digest: str) -> int:
        """Return the index of the actor that judges a task."""
        with self._lock:
            return self._places.setdefault(digest, len(self._places)) % self.actors


class RayPool(RemotePool):
    """A `Pool` over `actors` Ray actors, each with a GPU if `gpus`; use it as a context manager.

    With `name`, all pools of the cluster that have this name share the actors, which outlive the
    pools. `tasks`: tasks to assign to the actors in advance, for an even distribution. `effort`
    None verifies without timing. Raises ConfigError if Ray is not installed.
    """

    def __init__(
        self,
        actors: int,
        effort: Effort | None = Effort.QUICK,
        gpus: bool = True,
        isolation: str = "auto",
        name: str | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        super().__init__()
        self._seats = Seats(actors, [task.digest for task in tasks])
        if find_spec("ray") is None:
            raise ConfigError("play.ray needs ray; pip install 'cuagent[train-ray]'")
        import ray

        if not ray.is_initialized():
            ray.init(os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        resources = {"num_cpus": 1, "num_gpus": int(gpus), "max_concurrency": MAX_CONCURRENCY}
        # An actor that crashes is replaced, else all its later kernels would have no reward.
        resources |= {"max_restarts": -1, "max_task_retries": 1}
        shared_options = {"namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached"}
        self._actors: list[Any] = []
        for number in range(actors):
            name_options = {} if name is None else shared_options | {"name": f"{name}-{number}"}
            actor: Any = ray.remote(JudgeActor).options(**resources, **name_options)
            self._actors.append(actor.remote(effort, isolation))
        self._ray = ray
        self._shared = name is not None

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if not self._shared:
            self._ray.wait([actor.close.remote() for actor in self._actors], timeout=60)
            for actor in self._actors:
                self._ray.kill(actor)

    def ask(self, method: str, task: Task, *arguments: Any) -> Any:
        """Call a method of the pool in the actor that judges the task. Raises the method's errors,
        and PoolError."""
        from ray.exceptions import RayError

        # A task always goes to the same actor, which keeps it open and caches its judgements.
        actor = self._actors[self._seats.of(task.digest)]
        try:
            answer = self._ray.get(actor.ask.remote(method, task, *arguments))
        except RayError as error:
            raise PoolError(f"a Ray judge actor failed: {str(error).splitlines()[0]}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer
