"""Judges for many episodes at once: owner processes for each timing device, and a memory.

For: rollouts, where hundreds of episodes want verdicts. A processor that times (`cores`) has one
owner; a GPU may have several (`beside`), which verify beside each other and time one after the
other, while none of them verifies: so that no measurement runs beside anything of ours.
Compiling happens in the threads of the episodes, whose results the owner finds in the build cache;
not where these run on a processor that times, which compilers would disturb. What was judged once
is remembered by content, for a policy repeats itself. Not covered: several machines.
Invariant: a judgement never depends on which episode asked for it, so one that failed for reasons
of the machine is not remembered.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, cast

from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.device_lock import DeviceLock
from cuagent.task import Device, Task
from cuagent.timing import Effort
from cuagent.training.judge_process import JudgeProcess
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.profile.profile import Profile


class Pool(Protocol):
    """What rollouts ask for judgements: a pool of this process, or one that is lent (`lend.py`)."""

    @property
    def judged(self) -> int:
        """Different kernels so far."""
        ...

    @property
    def cache_hits(self) -> int:
        """Questions whose answer was known."""
        ...

    def open(self, tasks: Sequence[Task]) -> None:
        """Take time now that the first judgement on each task would take: for torch.compile."""
        ...

    def judge_for(self, task: Task) -> Judge:
        """What an episode's run takes for its judge."""
        ...

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Raises PoolError."""
        ...

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """Raises ProfileError, PoolError."""
        ...


class JudgePool:
    """A context manager. `effort` None verifies without timing: rewards are then -1 and 1.

    `gpus`: indices of the CUDA devices that time, with `beside` owners each. `cores`: processors
    that time CPU tasks, each with an owner that stays on it, its children too; none is one owner
    anywhere.
    `memory`: a file of our own (pickles, one after the other) that keeps what was judged, for a
    run that is resumed or for another seed on the same tasks; only for one machine and one effort.
    """

    def __init__(
        self,
        effort: Effort | None = Effort.QUICK,
        isolation: str = "auto",
        gpus: Sequence[int] = (0,),
        cache_file: Path | None = None,
        cores: Sequence[int] = (),
        judges_per_gpu: int = 1,
    ) -> None:
        self.effort = effort
        self.isolation = isolation
        self.gpus = gpus
        self.cores = cores
        self.judges_per_gpu = judges_per_gpu
        self.judged = 0
        self.cache_hits = 0
        self._judge_processes: dict[tuple[bool, int], JudgeProcess] = {}
        """By whether they judge on a GPU, and by place among their like."""
        self._places: dict[str, int] = {}
        self._cache: dict[tuple[str, str], Future[Judgement]] = {}
        self._lock = threading.RLock()
        self._cache_file = cache_file
        self._locks: TemporaryDirectory[str] | None = None

    def __enter__(self) -> JudgePool:
        if self._cache_file is not None and self._cache_file.exists():
            for key, judgement in read_judgements(self._cache_file):
                self._cache[key] = Future()
                self._cache[key].set_result(judgement)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for judge_process in self._judge_processes.values():
            judge_process.close()
        if self._locks is not None:
            self._locks.cleanup()

    def open(self, tasks: Sequence[Task], should_stop: Callable[[], bool] = lambda: False) -> None:
        """All owners at once, each as many tasks at a time as there are processors for it, until
        `enough`. Raises PoolError where an owner died."""
        by_process: dict[JudgeProcess, list[Task]] = {}
        for task in tasks:
            by_process.setdefault(self._judge_process(task), []).append(task)
        if not by_process:
            return
        free = 1 if self.cores else len(os.sched_getaffinity(0)) // len(by_process)

        def work(judge_process: JudgeProcess) -> None:
            for part in chunks(by_process[judge_process], max(1, free)):
                if not should_stop():
                    judge_process.open(part, self.effort is not None)

        with ThreadPoolExecutor(len(by_process)) as threads:
            list(threads.map(work, by_process))

    def judge_for(self, task: Task) -> Judge:
        """What an episode's run takes for its judge."""
        # A judge by shape: it has what the agent's tools and `conclude` ask of one.
        return cast("Judge", PooledJudge(self, task))

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge once, remember, and let whoever asks the same meanwhile wait for that."""
        key = (task.digest, attempt.digest)
        with self._lock:
            cached = self._cache.get(key)
            future: Future[Judgement] = cached or Future()
            self._cache[key] = future
            self.cache_hits += cached is not None
            self.judged += cached is None
        if cached is not None:
            return cached.result()
        try:
            if os.sched_getaffinity(0).isdisjoint(self.cores):
                build(attempt, task.device)  # in this thread, beside others; the owner finds it
            found = self._judge_process(task).judge(task, attempt, self.effort if timed else None)
        except BaseException as error:
            self._drop(key)
            future.set_exception(error)
            raise
        if found.verdict.reason is Reason.INFRASTRUCTURE:
            self._drop(key)
        elif self._cache_file is not None:
            with self._lock, self._cache_file.open("ab") as out:
                pickle.dump((key, found), out)
        future.set_result(found)
        return found

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge as if nothing were remembered, and remember nothing."""
        return self._judge_process(task).judge(task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """In the owner, for it measures too. Raises ProfileError, PoolError."""
        return self._judge_process(task).profile(task, attempt)

    def device_lock(self, gpu: int) -> DeviceLock:
        """By which all owners of a GPU take turns, and who computes there beside them."""
        with self._lock:
            if self._locks is None:
                self._locks = TemporaryDirectory(prefix="cuagent-turns-")
            return DeviceLock(Path(self._locks.name) / f"gpu-{gpu}")

    def describe_cost(self) -> str:
        """What a kernel that was right has cost its owner, in the median; for a person."""
        done = [f.result() for f in list(self._cache.values()) if f.done() and not f.exception()]
        right = [j for j in done if j.verdict.accepted]
        if not right:
            return "no kernel was right yet"
        verdict = median(j.verdict.seconds["total"] for j in right)
        timing = median(j.timing.seconds if j.timing else 0.0 for j in right)
        return f"a right kernel takes {verdict:.1f} s to verify and {timing:.1f} s to time"

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._cache[key]

    def _judge_process(self, task: Task) -> JudgeProcess:
        cuda = task.device == Device.CUDA
        devices = [*self.gpus] * self.judges_per_gpu if cuda else self.cores or (None,)
        with self._lock:
            # The same task always goes to the same owner, which has it open; new ones take turns.
            place = self._places.setdefault(task.digest, len(self._places) % len(devices))
            if (cuda, place) not in self._judge_processes:
                index = devices[place]
                gpu, core = (index, None) if cuda else (None, index)
                device_lock = DeviceLock() if gpu is None else self.device_lock(gpu)
                self._judge_processes[cuda, place] = JudgeProcess(
                    self.isolation, gpu, core, device_lock, self.judges_per_gpu
                )
            return self._judge_processes[cuda, place]


class PooledJudge:
    """`cuagent.judge.Judge` of one task, by way of the pool."""

    def __init__(self, pool: Pool, task: Task) -> None:
        self.pool = pool
        self.task = task

    def build(self, attempt: Attempt) -> Build:
        return build(attempt, self.task.device)

    def judge(self, attempt: Attempt, effort: Effort | None = Effort.QUICK) -> Judgement:
        """At the pool's effort, whatever is asked: an episode's `submit` is not a claim of record,
        and the reward must be that of the verdict which the policy was shown."""
        return self.pool.judge(self.task, attempt, timed=effort is not None)

    def profile(self, attempt: Attempt | None = None) -> Profile:
        return self.pool.profile(self.task, attempt)


def chunks(tasks: Sequence[Task], most: int) -> Iterator[Sequence[Task]]:
    """One part after the other."""
    for at in range(0, len(tasks), most):
        yield tasks[at : at + most]


def read_judgements(path: Path) -> list[tuple[tuple[str, str], Judgement]]:
    """What was judged; what a killed writer left half written is cut off, for more is to follow."""
    found, end = [], 0
    with path.open("rb") as source, suppress(EOFError, pickle.UnpicklingError):
        while True:
            found.append(pickle.load(source))
            end = source.tell()
    os.truncate(path, end)
    return found
