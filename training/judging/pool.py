"""Judge kernels for many episodes: one or more processes per timing device, and a cache.

Rollouts have hundreds of episodes that wait for verdicts. A CPU core that times (`cores`) has one
judging process. A GPU may have several (`judges_per_gpu`): they verify in parallel, and time one
after the other while no other process verifies, so that cuagent itself never disturbs a
measurement. The threads of the episodes compile the kernels, and the judging process finds the
results in the build cache; the threads do not compile if they may run on a timing core. Judgements
are cached by content, because a policy repeats its kernels.
Not covered: several machines (`ray_pool.py`).
Invariant: a judgement never depends on the episode that asked. A failure of the machine is not
cached.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.device_lock import DeviceLock
from cuagent.record.origin import code_of, has_valid_code
from cuagent.task import Device, Task
from cuagent.timing import Effort, Timing
from cuagent.training.judging.judge_process import JudgeProcess, PoolError
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.judge_protocol import Judge
    from cuagent.judgement import Judgement
    from cuagent.measure.profile.profile import Profile
    from cuagent.measure.rungs import Ladder

MOST_KEPT = 20_000
"""Largest number of judgements in the cache, some 30 kB each; the oldest are forgotten."""
_MAGIC = b"judgment"
_HEAD = struct.Struct("<8s32sQ")
"""Header of an entry of the cache file: magic, authentication code, size of the pickle in bytes."""


class Pool(Protocol):
    """Source of judgements for rollouts: the pool of this process, or a client of another process's
    pool."""

    @property
    def judged(self) -> int:
        """Number of distinct kernels judged so far."""
        ...

    @property
    def cache_hits(self) -> int:
        """Number of judgements answered from the cache."""
        ...

    def open(self, tasks: Sequence[Task]) -> None:
        """Open tasks in advance, so that the first judgement does not wait for torch.compile."""
        ...

    def judge_for(self, task: Task) -> Judge:
        """Return a judge of attempts at `task`, for the run of one episode."""
        ...

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt. Raises PoolError."""
        ...

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Profile an attempt, or the reference if `attempt` is None. Raises ProfileError,
        PoolError."""
        ...

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Return the ladder of a task; it is measured at the first request only. Raises
        PoolError."""
        ...


class JudgePool:
    """A pool of judging processes on this machine; use it as a context manager.

    `effort` None verifies without timing, so rewards are -1 and 1. `gpus`: indices of the GPUs that
    time, with `judges_per_gpu` processes each. `cores`: CPU cores that time CPU tasks, one pinned
    process each; empty: one process, not pinned. `cache_file`: file in which judgements are kept
    for a resumed run or another seed on the same tasks; it is valid for one machine and one effort
    only. Entering the context raises PoolError if another user or machine wrote this file.
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
        """Processes by (True for a GPU, False for the CPU; index among those)."""
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
        """Open the tasks in all judging processes in parallel; stop early when `should_stop`
        returns True.

        Each process opens as many tasks in parallel as it has cores. Raises PoolError if a process
        died.
        """
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
        """Return a judge of attempts at `task`, for the run of one episode."""
        return PooledJudge(self, task)

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt, or return the cached judgement.

        Concurrent callers with the same attempt wait for one judgement. `timed` False skips timing.
        Raises PoolError.
        """
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
                build(attempt, task.device)  # in parallel; the judge finds the build in the cache
            found = self._judge_process(task).judge(task, attempt, self.effort if timed else None)
        except BaseException as error:
            self._drop(key)
            future.set_exception(error)
            raise
        if found.verdict.reason is Reason.INFRASTRUCTURE:
            self._drop(key)
        elif self._cache_file is not None:
            with self._lock, self._cache_file.open("ab") as out:
                out.write(entry((key, found)))
        future.set_result(found)
        self._forget_oldest()
        return found

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge an attempt without reading or writing the cache; `effort` None skips timing."""
        return self._judge_process(task).judge(task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Profile an attempt in the judging process, so that no judgement disturbs it. Raises
        ProfileError, PoolError."""
        return self._judge_process(task).profile(task, attempt, counters)

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Return the ladder of a task; the judging process measures it at the first request. Raises
        PoolError."""
        return self._judge_process(task).measure_ladder(task, whole)

    def device_lock(self, gpu: int) -> DeviceLock:
        """Return the lock of a GPU: judging processes hold it while they time, and training holds
        it while it computes."""
        with self._lock:
            if self._locks is None:
                self._locks = TemporaryDirectory(prefix="cuagent-turns-")
            return DeviceLock(Path(self._locks.name) / f"gpu-{gpu}")

    def describe_cost(self) -> str:
        """Return as text the median seconds of verifying and of timing a right kernel."""
        done = [f.result() for f in list(self._cache.values()) if f.done() and not f.exception()]
        right = [j for j in done if j.verdict.accepted]
        if not right:
            return "no right kernel yet"
        verdict = median(j.verdict.seconds["total"] for j in right)
        timing = median(j.timing.seconds if j.timing else 0.0 for j in right)
        return f"a right kernel takes {verdict:.1f} s to verify and {timing:.1f} s to time"

    def _forget_oldest(self) -> None:
        """Bound the memory of the cache: a long run judges hundreds of thousands of kernels."""
        with self._lock:
            while len(self._cache) > MOST_KEPT:
                oldest = next(iter(self._cache))
                if not self._cache[oldest].done():
                    return
                del self._cache[oldest]

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._cache[key]

    def _judge_process(self, task: Task) -> JudgeProcess:
        cuda = task.device == Device.CUDA
        devices = [*self.gpus] * self.judges_per_gpu if cuda else self.cores or (None,)
        with self._lock:
            # A task always goes to the same process, which keeps it open; new ones rotate.
            place = self._places.setdefault(task.digest, len(self._places) % len(devices))
            if (cuda, place) not in self._judge_processes:
                index = devices[place]
                gpu, core = (index, None) if cuda else (None, index)
                device_lock = DeviceLock() if gpu is None else self.device_lock(gpu)
                self._judge_processes[cuda, place] = JudgeProcess(
                    self.isolation, gpu, core, device_lock, self.judges_per_gpu
                )
            return self._judge_processes[cuda, place]


class RemotePool:
    """Base class of a `Pool` that sends its requests to a pool in another process, and counts
    them."""

    def __init__(self) -> None:
        self._asked: set[tuple[str, str]] = set()
        self._count = 0
        self._lock = threading.Lock()

    def ask(self, method: str, task: Task, *arguments: Any) -> Any:
        """Call a method of the pool in the other process. Raises the method's errors, and
        PoolError."""
        raise NotImplementedError

    @property
    def judged(self) -> int:
        """Number of distinct kernels for which this client requested a judgement."""
        return len(self._asked)

    @property
    def cache_hits(self) -> int:
        """Number of this client's requests that repeat an earlier one."""
        return self._count - len(self._asked)

    def open(self, tasks: Sequence[Task]) -> None:
        """Do nothing: the other process opens the tasks, and may serve several clients."""

    def judge_for(self, task: Task) -> Judge:
        """Return a judge of attempts at `task`, for the run of one episode."""
        return PooledJudge(self, task)

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt in the other process, which uses its cache."""
        with self._lock:
            self._count += 1
            self._asked.add((task.digest, attempt.digest))
        return cast("Judgement", self.ask("judge", task, attempt, timed))

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Profile an attempt, or the reference if `attempt` is None, in the other process."""
        return cast("Profile", self.ask("profile", task, attempt, counters))

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Return the ladder of a task; the other process measures it at the first request."""
        return cast("Ladder", self.ask("measure_ladder", task, whole))


class PooledJudge:
    """A `Judge` of attempts at one task that forwards its requests to a pool.

    Invariant: the judgement of an attempt never depends on the episode that asked. An episode that
    measures a ladder does not change which baselines attempts are timed against.
    """

    def __init__(self, pool: Pool, task: Task) -> None:
        self.pool = pool
        self.task = task

    def build(self, attempt: Attempt) -> Build:
        return build(attempt, self.task.device)

    def judge(
        self, attempt: Attempt, effort: Effort | None = Effort.QUICK, *, than: Timing | None = None
    ) -> Judgement:
        """Judge an attempt at the pool's effort (`effort` None: without timing).

        Other efforts and `than` are ignored: `submit` must give the reward of the verdict that the
        policy saw.
        """
        return self.pool.judge(self.task, attempt, timed=effort is not None)

    def verify_ahead(self, attempt: Attempt) -> None:
        """Do nothing: the pool judges at one effort only, and caches its verdicts."""

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        return self.pool.profile(self.task, attempt, counters)

    def measure_ladder(self, *, whole: bool = False, wait_s: float | None = None) -> Ladder:
        return self.pool.measure_ladder(self.task, whole)

    def confirm_rung(self) -> Ladder:
        """Return the ladder as measured before. The best rung is not measured again, because no
        reward depends on it."""
        return self.pool.measure_ladder(self.task)

    def start_from(self, found: Ladder) -> bool:
        """Return False: a ladder measured elsewhere is not used, because the pool measures its
        own."""
        return False


def chunks(tasks: Sequence[Task], most: int) -> Iterator[Sequence[Task]]:
    """Yield the tasks in parts of at most `most`."""
    for at in range(0, len(tasks), most):
        yield tasks[at : at + most]


def read_judgements(path: Path) -> list[tuple[tuple[str, str], Judgement]]:
    """Return the (key, judgement) entries of the cache file.

    A partial last entry is removed from the file, because new entries are appended. A pickle can
    run any code, so each entry is authenticated before it is unpickled. Raises PoolError.
    """
    found, end = [], 0
    with path.open("rb") as source:
        while len(head := source.read(_HEAD.size)) == _HEAD.size:
            magic, code, size = _HEAD.unpack(head)
            if magic == _MAGIC and size > path.stat().st_size - source.tell():
                break
            content = source.read(size) if magic == _MAGIC else b""
            if not has_valid_code(content, code):
                raise PoolError(
                    f"{path}: of unknown origin: cuagent did not write it for you on this machine; "
                    "remove it"
                )
            found.append(pickle.loads(content))
            end = source.tell()
    os.truncate(path, end)
    return found


def entry(judgement: tuple[tuple[str, str], Judgement]) -> bytes:
    """Return a judgement as the bytes of one entry of the cache file; b"" if this user has no key
    to authenticate entries."""
    content = pickle.dumps(judgement)
    code = code_of(content)
    return b"" if code is None else _HEAD.pack(_MAGIC, code, len(content)) + content
