"""One process that judges on one device, and holds open what it was asked about.

For: `pool.py`, whose owners these are. Nothing is measured beside another measurement, for an owner
answers one question after the other, and several on one GPU take turns at timing (`quiet`); only
opening, of which nothing is timed, goes on for several tasks at once.
Invariant: an owner ends with the process that started it.
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

from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.task import Task, TaskError
from cuagent.timing import Effort
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.arms import CANDIDATE
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.profile.profile import Profile
    from cuagent.verify.referee import Isolation

MAX_OPEN_TASKS = 24
"""Tasks that an owner keeps warm; each has processes and memory of its own, and all of them one
process that has imported torch."""
TASK_BYTES = 4 << 30
"""Of a GPU's memory for each task that is open, and as much for what is judged: 30 GB of an H200
were in use with eight tasks of a million numbers, contexts included."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class PoolError(ForkServerError):
    """An owner process died or could not open a task. One line.

    The agent takes it for what it is, a loss of the judge: such an episode has no reward.
    """


class JudgeProcess:
    """One process that holds judges of one device. Raises PoolError where there is no such GPU."""

    def __init__(
        self,
        isolation: str,
        gpu: int | None,
        core: int | None,
        device_lock: DeviceLock,
        judges_per_gpu: int = 1,
    ) -> None:
        """`beside`: owners that share the GPU, this one included."""
        context = multiprocessing.get_context("spawn")
        visible = None if gpu is None else visible_device(gpu)
        self._pipe, child_pipe = context.Pipe()
        arguments = (child_pipe, isolation, visible, core, device_lock, judges_per_gpu)
        self._process = context.Process(target=serve, args=arguments)
        self._process.start()
        child_pipe.close()
        self._lock = threading.Lock()

    def open(self, tasks: Sequence[Task], timed: bool) -> None:
        """Have them open before anything is judged on them, all at once. Raises PoolError where the
        process ended; a task that cannot be opened says so to who judges on it."""
        self._ask("open", tasks, timed)

    def judge(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Raises PoolError."""
        return self._ask("judge", task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """Raises ProfileError, PoolError."""
        return self._ask("profile", task, attempt)

    def _ask(self, *question: Any) -> Any:
        with self._lock:
            try:
                self._pipe.send(question)
                answer = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise PoolError(f"a judging process ended ({error!r}); start again") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        with self._lock:
            self._pipe.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.terminate()


class JudgeCache:
    """The judges that an owner holds open; of too many, the one not asked for longest is closed."""

    def __init__(
        self,
        isolation: Isolation,
        device_lock: DeviceLock | None = None,
        sharing_gpu: int | None = None,
    ) -> None:
        """`of_gpu`: owners that share the memory of a GPU; None where nothing is judged on one."""
        self.isolation = isolation
        self.device_lock = device_lock or DeviceLock()
        self.sharing_gpu = sharing_gpu
        self._judges: OrderedDict[str, Judge] = OrderedDict()
        self._fork_server: ForkServer | None = None
        self._without_baseline: set[str] = set()
        """Tasks with a baseline that does not open, a second time either."""

    @cached_property
    def max_open(self) -> int:
        """Tasks that may be open at once."""
        if self.sharing_gpu is None:
            return MAX_OPEN_TASKS
        with self.device_lock.shared():  # this asks the driver, and somebody may be timing
            total = gpu_memory()
        return MAX_OPEN_TASKS if total is None else max_open_tasks(total, self.sharing_gpu)

    def judge(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Where a baseline was lost, which a judge times no more, a new judge has the last word:
        for want of it all kernels of the task would be worth less from then on."""
        found = self._get(task).judge(attempt, effort)
        if missing_baseline(found) and task.digest not in self._without_baseline:
            self._judges.pop(task.digest).close()
            found = self._get(task).judge(attempt, effort)
            if missing_baseline(found):
                self._without_baseline.add(task.digest)
        return found

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        return self._get(task).profile(attempt)

    def open(self, tasks: Sequence[Task], timed: bool) -> None:
        """All at once, as many as there is room for: it is mostly waiting for compilers."""
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
        """For judges that are opened now; one that died its judges have replaced for themselves."""
        if self._fork_server is None or not self._fork_server.alive:
            if self._fork_server is not None:
                self._fork_server.close()
            self._fork_server = ForkServer()
        return self._fork_server

    def _open_judge(self, task: Task, timed: bool, fork_server: ForkServer) -> Judge | None:
        """None where it failed: whoever judges on the task will try again, and be told."""
        from cuagent.judge import Judge
        from cuagent.verify.oracle.client import OracleLost

        judge = None
        try:
            judge = Judge(
                task, self.isolation, fork_server=fork_server, device_lock=self.device_lock
            )
            if timed:
                judge.open()
        except (TaskError, ForkServerError, OracleLost, CudaMemoryError):
            if judge is not None:
                judge.close()
            return None
        return judge

    def _get(self, task: Task) -> Judge:
        from cuagent.judge import Judge
        from cuagent.verify.memory_plan import TooLarge

        while task.digest not in self._judges:
            while len(self._judges) >= self.max_open:  # before, for there may be no room for both
                self._close_oldest()
            try:
                judge = Judge(
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

    def _add(self, task: Task, judge: Judge) -> None:
        self._judges[task.digest] = judge


def missing_baseline(found: Judgement) -> bool:
    """Whether a right attempt was timed against fewer baselines than it should have been."""
    timing = found.timing
    if timing is None or not found.verdict.accepted:
        return False
    return any(arm.failed for arm in timing.arms if arm.name != CANDIDATE)


def gpu_memory(index: int = 0) -> int | None:
    """Bytes of a GPU that this process is shown; None where there is none, which whoever opens a
    task is told."""
    import torch

    try:
        return int(torch.cuda.get_device_properties(index).total_memory)
    except (RuntimeError, AssertionError):  # the latter of a torch without CUDA
        return None


def max_open_tasks(total: int, judges_per_gpu: int) -> int:
    """Tasks that each of so many owners may hold open on a GPU of `total` bytes; one at least."""
    return max(1, min(MAX_OPEN_TASKS, (total // TASK_BYTES - 1) // judges_per_gpu))


def serve(
    pipe: Connection,
    isolation: Isolation,
    visible: str | None,
    core: int | None,
    device_lock: DeviceLock,
    judges_per_gpu: int,
) -> None:
    """The owner's process: answers until the pipe closes. `sees` is the GPU that it is shown."""
    exit_with_parent()
    if core is not None:
        pin_to_core(core)
    if visible is not None:
        os.environ[VISIBLE] = visible
        # Every open task has a torch.compile of its own: with a compiler process for each processor
        # in each, they would be a thousand.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from cuagent.measure.profile.profile import ProfileError
    from cuagent.verify.oracle.client import OracleLost

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
    """How CUDA is told to see only the device that it counts as `gpu` now. Raises PoolError."""
    seen = os.environ.get(VISIBLE)
    if seen is None:
        return str(gpu)
    names = seen.split(",")
    if gpu >= len(names):
        raise PoolError(f"there is no GPU {gpu} to judge on: {VISIBLE}={seen}")
    return names[gpu].strip()


def exit_with_parent() -> None:
    """End at once when the process that started this one is gone, even if it was killed: what it
    wanted done here nobody waits for. Judges end with their owner."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pin_to_core(core: int) -> None:
    """Hold this process, and what it starts, on one processor, with one thread each."""
    import torch

    os.sched_setaffinity(0, {core})
    # More threads, or more compilers of torch.compile, would only take turns. torch may have been
    # imported before, with a thread for every processor: on this one they waited for each other,
    # awake, whenever an arena was laid out, three times as long as a verdict takes.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    torch.set_num_threads(1)
