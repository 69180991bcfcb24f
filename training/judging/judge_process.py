"""Run the judges of one device in a child process that keeps tasks open (their processes and memory
ready).

`pool.py` owns these processes. No two measurements run at the same time: a process answers one
request after the other, and processes on one GPU share a device lock for timing. Only `open`, which
times nothing, handles several tasks in parallel.
Invariant: the child ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.task import Task, TaskError
from cuagent.timing import Effort
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

if TYPE_CHECKING:
    from cuagent.judge import LocalJudge
    from cuagent.judgement import Judgement
    from cuagent.measure.profile.profile import Profile
    from cuagent.measure.rungs import Ladder
    from cuagent.verify.referee import Isolation

MAX_OPEN_TASKS = 24
"""Largest number of tasks that one judging process keeps open. Each open task has its own processes
and memory; one fork server that has imported torch serves all of them."""
TASK_BYTES = 4 << 30
"""GPU memory in bytes that is reserved for each open task and for the attempt in progress. Eight
open tasks of a million numbers used 30 GB of an H200, contexts included."""
EXIT_S = 10.0
"""Longest wait in seconds for the exit of a process whose pipe has closed."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class PoolError(ForkServerError):
    """Error: a judging process failed, or a task cannot be opened. The message is one line.

    The agent treats it as a lost judge: the episode gets no reward.
    """


class JudgeProcess:
    """Handle of a judging process, which serves one device. Concurrent requests wait for each
    other."""

    def __init__(
        self,
        isolation: str,
        gpu: int | None,
        core: int | None,
        device_lock: DeviceLock,
        judges_per_gpu: int = 1,
    ) -> None:
        """Start the judging process.

        `gpu`: index of its GPU; None: it judges CPU kernels. `core`: CPU core to pin it to; None:
        not pinned. `judges_per_gpu`: number of processes that share the GPU, this one included.
        Raises PoolError if CUDA_VISIBLE_DEVICES excludes the GPU.
        """
        visible = None if gpu is None else visible_device(gpu)
        self._arguments = (isolation, visible, core, device_lock, judges_per_gpu)
        self._lock = threading.Lock()
        self._closed = False
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=serve, args=(child_pipe, *self._arguments))
        self._process.start()
        child_pipe.close()

    def open(self, tasks: Sequence[Task], timed: bool) -> None:
        """Open tasks in parallel before the first judgement. `timed`: kernels will be timed.

        Raises PoolError if the process died. A task that cannot be opened fails at its judgement.
        """
        self._ask("open", tasks, timed)

    def judge(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge an attempt in the judging process; `effort` None skips timing. Raises PoolError."""
        return self._ask("judge", task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None, counters: bool) -> Profile:
        """Profile an attempt, or the reference if `attempt` is None. Raises ProfileError,
        PoolError."""
        return self._ask("profile", task, attempt, counters)

    def measure_ladder(self, task: Task, whole: bool) -> Ladder:
        """Return the ladder of a task; it is measured at the first request only. Raises PoolError.

        `whole`: also measure the rungs that are postponed otherwise.
        """
        return self._ask("measure_ladder", task, whole)

    def _ask(self, *question: Any) -> Any:
        """Return the answer of the judging process. If it crashes, ask a new process once more."""
        with self._lock:
            try:
                answer = self._exchange(question)
            except (EOFError, OSError) as error:
                if not self._restart():
                    raise PoolError(
                        f"a judging process died ({error!r}); run the command again"
                    ) from error
                try:
                    answer = self._exchange(question)
                except (EOFError, OSError) as again:
                    raise PoolError(f"two judging processes died in turn ({again!r})") from again
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _exchange(self, question: tuple[Any, ...]) -> Any:
        self._pipe.send(question)
        return self._pipe.recv()

    def _restart(self) -> bool:
        """Start a new process if the last one crashed or was killed, and return True.

        Without a new process all later kernels would stay without a reward. A process that ended by
        itself was interrupted or closed, so no other one is started.
        """
        self._process.join(timeout=EXIT_S)
        if self._closed or not self._process.exitcode:
            return False
        self._pipe.close()
        self._start()
        return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._pipe.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.terminate()


class JudgeCache:
    """Cache of open judges by task; the least recently used judge is closed when there are more
    than `max_open`."""

    def __init__(
        self,
        isolation: Isolation,
        device_lock: DeviceLock | None = None,
        sharing_gpu: int | None = None,
    ) -> None:
        """Create an empty cache; `sharing_gpu` processes share the GPU's memory (None: no GPU)."""
        self.isolation = isolation
        self.device_lock = device_lock or DeviceLock()
        self.sharing_gpu = sharing_gpu
        self._judges: OrderedDict[str, LocalJudge] = OrderedDict()
        self._fork_server: ForkServer | None = None
        self._ladders: dict[str, Ladder] = {}
        """Baselines of each task (`Ladder`), by the task's digest."""
        self._without_baseline: set[str] = set()
        """Digests of tasks with a baseline that failed with two judges in succession."""

    @cached_property
    def max_open(self) -> int:
        """Largest number of tasks that may be open at the same time."""
        if self.sharing_gpu is None:
            return MAX_OPEN_TASKS
        with self.device_lock.shared():  # a driver call could disturb a timing
            total = gpu_memory()
        return MAX_OPEN_TASKS if total is None else max_open_tasks(total, self.sharing_gpu)

    def judge(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge an attempt. If a baseline failed in its timing, judge once more with a new judge.

        A judge never times a failed baseline again. Without a new judge all later kernels of the
        task would get a lower reward.
        """
        found = self._get(task).judge(attempt, effort)
        if missing_baseline(found) and task.digest not in self._without_baseline:
            self._judges.pop(task.digest).close()
            found = self._get(task).judge(attempt, effort)
            if missing_baseline(found):
                self._without_baseline.add(task.digest)
        return found

    def profile(self, task: Task, attempt: Attempt | None, counters: bool) -> Profile:
        return self._get(task).profile(attempt, counters=counters)

    def measure_ladder(self, task: Task, whole: bool) -> Ladder:
        """Return the ladder of a task; it is measured at the first request only.

        `whole`: also measure the rungs that were postponed. The ladder is not passed to the task's
        judge: later attempts must be timed against the same baselines, whether or not an episode
        asked for the ladder.
        """
        known = self._ladders.get(task.digest)
        if known is None or (whole and known.later):
            judge = self._get(task)
            try:
                known = self._ladders[task.digest] = judge.measure_ladder(whole=whole)
            finally:
                judge.drop_ladder()
        return known

    def open(self, tasks: Sequence[Task], timed: bool) -> None:
        """Open tasks in parallel, up to `max_open`. Compilation takes most of the time."""
        room = max(0, self.max_open - len(self._judges))
        tasks = [task for task in tasks if task.digest not in self._judges][:room]
        if tasks:
            with ThreadPoolExecutor(len(tasks)) as threads:
                fork_server = self._live_fork_server()
                opened = threads.map(lambda task: self._open_judge(task, timed, fork_server), tasks)
                for task, judge in zip(tasks, opened, strict=True):
                    if judge is not None:
                        self._add(task, judge)

    def close(self) -> None:
        for judge in self._judges.values():
            judge.close()
        if self._fork_server is not None:
            self._fork_server.close()

    def _live_fork_server(self) -> ForkServer:
        """Return a live fork server for new judges; start one if there is none or it died.

        Judges that are already open replace a dead fork server themselves.
        """
        if self._fork_server is None or not self._fork_server.alive:
            if self._fork_server is not None:
                self._fork_server.close()
            self._fork_server = ForkServer()
        return self._fork_server

    def _open_judge(self, task: Task, timed: bool, fork_server: ForkServer) -> LocalJudge | None:
        """Open a judge for a task and return it; None if that failed. The next judgement then tries
        again and reports the error."""
        from cuagent.judge import LocalJudge
        from cuagent.verify.oracle.process import OracleLost

        judge = None
        try:
            judge = LocalJudge(
                task, self.isolation, fork_server=fork_server, device_lock=self.device_lock
            )
            if timed:
                judge.open()
        except (TaskError, ForkServerError, OracleLost, CudaMemoryError):
            if judge is not None:
                judge.close()
            return None
        return judge

    def _get(self, task: Task) -> LocalJudge:
        from cuagent.judge import LocalJudge
        from cuagent.verify.memory_plan import TooLarge

        while task.digest not in self._judges:
            while len(self._judges) >= self.max_open:  # close first: both may not fit
                self._close_oldest()
            try:
                judge = LocalJudge(
                    task,
                    self.isolation,
                    fork_server=self._live_fork_server(),
                    device_lock=self.device_lock,
                )
                self._add(task, judge)
            except (TooLarge, CudaMemoryError):
                if not self._judges:
                    raise
                self._close_oldest()
        self._judges.move_to_end(task.digest)
        return self._judges[task.digest]

    def _close_oldest(self) -> None:
        self._judges.popitem(last=False)[1].close()

    def _add(self, task: Task, judge: LocalJudge) -> None:
        self._judges[task.digest] = judge


def missing_baseline(found: Judgement) -> bool:
    """Return True if an accepted attempt was timed, but a baseline failed in this timing."""
    timing = found.timing
    if timing is None or not found.verdict.accepted:
        return False
    return any(arm.failed for arm in timing.arms if arm.name != CANDIDATE)


def gpu_memory(index: int = 0) -> int | None:
    """Return the total memory of a GPU in bytes; None if there is no such GPU."""
    import torch

    try:
        return int(torch.cuda.get_device_properties(index).total_memory)
    except (RuntimeError, AssertionError):  # AssertionError: torch without CUDA
        return None


def max_open_tasks(total: int, judges_per_gpu: int) -> int:
    """Return the number of tasks that each judging process may keep open. `total`: the GPU's memory
    in bytes."""
    return max(1, min(MAX_OPEN_TASKS, (total // TASK_BYTES - 1) // judges_per_gpu))


def serve(
    pipe: Connection,
    isolation: Isolation,
    visible: str | None,
    core: int | None,
    device_lock: DeviceLock,
    judges_per_gpu: int,
) -> None:
    """Answer requests until the pipe closes; the main function of a judging process.

    `visible`: value of CUDA_VISIBLE_DEVICES; None: no GPU. `core`: CPU core to pin to; None: not
    pinned.
    """
    exit_with_parent()
    if core is not None:
        pin_to_core(core)
    if visible is not None:
        os.environ[VISIBLE] = visible
        # Every open task runs torch.compile; one compiler process per core and task would make a
        # thousand processes.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from cuagent.measure.profile.profile import ProfileError
    from cuagent.verify.oracle.process import OracleLost

    cache = JudgeCache(isolation, device_lock, None if visible is None else judges_per_gpu)
    answer: object
    try:
        while True:
            method, subject, *arguments = pipe.recv()
            try:
                answer = getattr(cache, method)(subject, *arguments)
            except ProfileError as error:
                answer = error
            except (TaskError, ForkServerError, OracleLost, CudaMemoryError) as error:
                answer = PoolError(f"{subject.name}: {error}")
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the pool closed the pipe, or the user interrupted everything
    finally:
        cache.close()


def visible_device(gpu: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that shows only GPU `gpu`. Raises PoolError."""
    seen = os.environ.get(VISIBLE)
    if seen is None:
        return str(gpu)
    names = seen.split(",")
    if gpu >= len(names):
        raise PoolError(f"there is no GPU {gpu} to judge on: {VISIBLE}={seen}")
    return names[gpu].strip()


def exit_with_parent() -> None:
    """Make this process exit as soon as its parent process has ended, even if the parent was
    killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pin_to_core(core: int) -> None:
    """Pin this process and its children to one CPU core, with one thread each."""
    import torch

    os.sched_setaffinity(0, {core})
    # More threads or compiler processes would only alternate on the core. torch may already have
    # one thread for every core; on one core these threads waited busily for each other at each
    # arena layout, three times as long as a verdict takes.

    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    torch.set_num_threads(1)
