"""Judge on many machines: pools with one timing GPU each, as Ray actors (`cuagent[train-ray]`).

It serves rollouts that need more verdicts than one machine gives, and training by an engine with
its own processes (verl), which share named actors.
Not covered: starting a Ray cluster; without one (RAY_ADDRESS) Ray starts on this machine alone.
Task files must be in a folder that all machines see.
Invariant: an actor holds a whole GPU, so nothing else runs there during a timing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from cuagent.attempt import Attempt
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.config import ConfigError
from cuagent.training.judge_process import PoolError
from cuagent.training.pool import JudgePool, PooledJudge

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.ladder import Ladder
    from cuagent.measure.profile.profile import Profile

NAMESPACE = "cuagent"
"""Ray namespace of shared actors."""
MAX_CONCURRENCY = 16
"""Concurrent calls of an actor: one is timed, the others compile or wait."""


class JudgeActor:
    """The class that runs in a Ray actor: the pool of one device."""

    def __init__(self, effort: Effort | None, isolation: str) -> None:
        self.pool = JudgePool(effort, isolation)  # Ray shows an actor its own GPU only

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the pool; return its result, or the error for the caller to raise.

        Ray would change the error's type.
        """
        from cuagent.measure.profile.profile import ProfileError

        try:
            return getattr(self.pool, what)(*arguments)
        except (PoolError, ProfileError) as error:
            return error

    def close(self) -> None:
        self.pool.__exit__(None, None, None)


class RayPool:
    """A `Pool` and context manager over `actors` Ray actors, each with a GPU if `gpus`.

    With `name`, pools of the whole cluster share the actors, which outlive all of them.
    Raises ConfigError if Ray is not installed.
    """

    def __init__(
        self,
        actors: int,
        effort: Effort | None = Effort.QUICK,
        gpus: bool = True,
        isolation: str = "auto",
        name: str | None = None,
    ) -> None:
        if find_spec("ray") is None:
            raise ConfigError("play.ray needs ray; pip install 'cuagent[train-ray]'")
        import ray

        if not ray.is_initialized():
            ray.init(os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        resources = {"num_cpus": 1, "num_gpus": int(gpus), "max_concurrency": MAX_CONCURRENCY}
        shared_options = {"namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached"}
        self._actors: list[Any] = []
        for number in range(actors):
            name_options = {} if name is None else shared_options | {"name": f"{name}-{number}"}
            actor: Any = ray.remote(JudgeActor).options(**resources, **name_options)
            self._actors.append(actor.remote(effort, isolation))
        self._ray = ray
        self._shared = name is not None
        self._asked: set[tuple[str, str]] = set()
        self._count = 0
        self._lock = threading.Lock()

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

    @property
    def judged(self) -> int:
        """Number of distinct kernels that this pool asked for."""
        return len(self._asked)

    @property
    def cache_hits(self) -> int:
        """Number of repeated requests of this pool."""
        return self._count - len(self._asked)

    def open(self, tasks: Sequence[Task]) -> None:
        """Do nothing: actors shared with other pools may have the tasks open."""

    def judge_for(self, task: Task) -> Judge:
        """Return the judge of an episode's run."""
        return PooledJudge(self, task)

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt in an actor, with the actor's cache. Raises PoolError."""
        with self._lock:
            self._count += 1
            self._asked.add((task.digest, attempt.digest))
        return cast("Judgement", self._ask(task, "judge", task, attempt, timed))

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Profile in an actor. Raises ProfileError, PoolError."""
        return cast("Profile", self._ask(task, "profile", task, attempt, counters))

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Measure the ladder in an actor, or return the earlier one. Raises PoolError."""
        return cast("Ladder", self._ask(task, "measure_ladder", task, whole))

    def _ask(self, task: Task, *question: Any) -> Any:
        from ray.exceptions import RayError

        # A task always goes to the same actor, which keeps it open and caches its judgements.
        actor = self._actors[int(task.digest[:8], 16) % len(self._actors)]
        try:
            answer = self._ray.get(actor.ask.remote(*question))
        except RayError as error:
            raise PoolError(f"a Ray judge actor failed: {str(error).splitlines()[0]}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer
