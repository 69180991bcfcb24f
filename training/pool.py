"""Judges for many episodes at once: one owner process for each timing device, and a memory.

For: rollouts, where hundreds of episodes want verdicts. All timing on a device happens in its one
owner, so that no measurement runs beside another; a processor can be such a device (`cores`).
Compiling happens in the threads of the episodes, whose results the owner finds in the build cache;
not where these run on a processor that times, which compilers would disturb. What was judged once
is remembered by content, for a policy repeats itself. Not covered: several machines.
Invariant: a judgement never depends on which episode asked for it, so one that failed for reasons
of the machine is not remembered.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.measure.timing import Effort
from cuagent.task import Device, Task, TaskError
from cuagent.verify.verdict import Reason
from cuagent.worker import NurseryError

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.profile import Profile

MOST_OPEN = 24
"""Tasks that an owner keeps warm; each has processes and memory of its own."""


class PoolError(NurseryError):
    """An owner process died or could not open a task. One line.

    The agent takes it for what it is, a loss of the judge: such an episode has no reward.
    """


class Pool(Protocol):
    """What rollouts ask for judgements: a pool of this process, or one that is lent (`lend.py`)."""

    @property
    def judged(self) -> int:
        """Different kernels so far."""
        ...

    @property
    def remembered(self) -> int:
        """Questions whose answer was known."""
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

    `gpus`: indices of the CUDA devices that time, one owner each. `cores`: processors that time
    CPU tasks, each with an owner that stays on it, its children too; none is one owner anywhere.
    `memory`: a file of our own (pickles, one after the other) that keeps what was judged, for a
    run that is resumed or for another seed on the same tasks; only for one machine and one effort.
    """

    def __init__(
        self,
        effort: Effort | None = Effort.QUICK,
        isolation: str = "auto",
        gpus: Sequence[int] = (0,),
        memory: Path | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        self.effort = effort
        self.isolation = isolation
        self.gpus = gpus
        self.cores = cores
        self.judged = 0
        self.remembered = 0
        self._owners: dict[int, Owner] = {}
        self._places: dict[str, int] = {}
        self._memory: dict[tuple[str, str], Future[Judgement]] = {}
        self._lock = threading.Lock()
        self._file = memory

    def __enter__(self) -> JudgePool:
        if self._file is not None and self._file.exists():
            for key, judgement in kept(self._file):
                self._memory[key] = Future()
                self._memory[key].set_result(judgement)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for owner in self._owners.values():
            owner.close()

    def judge_for(self, task: Task) -> Judge:
        """What an episode's run takes for its judge."""
        # A judge by shape: it has what the agent's tools and `conclude` ask of one.
        return cast("Judge", PooledJudge(self, task))

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge once, remember, and let whoever asks the same meanwhile wait for that."""
        key = (task.digest, attempt.digest)
        with self._lock:
            known = self._memory.get(key)
            mine: Future[Judgement] = known or Future()
            self._memory[key] = mine
            self.remembered += known is not None
            self.judged += known is None
        if known is not None:
            return known.result()
        try:
            if os.sched_getaffinity(0).isdisjoint(self.cores):
                build(attempt, task.device)  # in this thread, beside others; the owner finds it
            found = self._owner(task).judge(task, attempt, self.effort if timed else None)
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        if found.verdict.reason is Reason.INFRASTRUCTURE:
            self._forget(key)
        elif self._file is not None:
            with self._lock, self._file.open("ab") as out:
                pickle.dump((key, found), out)
        mine.set_result(found)
        return found

    def afresh(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge as if nothing were remembered, and remember nothing."""
        return self._owner(task).judge(task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """In the owner, for it measures too. Raises ProfileError, PoolError."""
        return self._owner(task).profile(task, attempt)

    def pace(self) -> str:
        """What a kernel that was right has cost its owner, in the median; for a person."""
        done = [f.result() for f in list(self._memory.values()) if f.done() and not f.exception()]
        right = [j for j in done if j.verdict.accepted]
        if not right:
            return "no kernel was right yet"
        verdict = median(j.verdict.seconds["total"] for j in right)
        timing = median(j.timing.seconds if j.timing else 0.0 for j in right)
        return f"a right kernel takes {verdict:.1f} s to verify and {timing:.1f} s to time"

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._memory[key]

    def _owner(self, task: Task) -> Owner:
        cuda = task.device == Device.CUDA
        devices = self.gpus if cuda else self.cores or (None,)
        with self._lock:
            # The same task always goes to the same owner, which has it open; new ones take turns.
            place = self._places.setdefault(task.digest, len(self._places) % len(devices))
            if place not in self._owners:
                index = devices[place]
                self._owners[place] = Owner(
                    self.isolation, index if cuda else None, None if cuda else index
                )
            return self._owners[place]


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


class Owner:
    """One process that holds the judges of one device."""

    def __init__(self, isolation: str, gpu: int | None, core: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, isolation, gpu, core))
        self._process.start()
        theirs.close()
        self._turn = threading.Lock()

    def judge(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Raises PoolError."""
        return self._ask("judge", task, attempt, effort)

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """Raises ProfileError, PoolError."""
        return self._ask("profile", task, attempt)

    def _ask(self, *question: Any) -> Any:
        with self._turn:
            try:
                self._pipe.send(question)
                answer = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise PoolError(f"a judging process ended ({error!r}); start again") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        with self._turn:
            self._pipe.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.terminate()


def kept(path: Path) -> list[tuple[tuple[str, str], Judgement]]:
    """What was judged; what a killed writer left half written is cut off, for more is to follow."""
    found, whole = [], 0
    with path.open("rb") as source, suppress(EOFError, pickle.UnpicklingError):
        while True:
            found.append(pickle.load(source))
            whole = source.tell()
    os.truncate(path, whole)
    return found


def serve(pipe: Connection, isolation: str, gpu: int | None, core: int | None) -> None:
    """The owner's process: answers until the pipe closes."""
    follow_parent()
    if core is not None:
        stay_on(core)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
        # Every open task has a torch.compile of its own: with a compiler process for each processor
        # in each, they would be a thousand.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from cuagent.judge import Judge
    from cuagent.measure.profile import ProfileError
    from cuagent.verify.oracle import OracleLost
    from cuagent.worker import NurseryError

    judges: OrderedDict[str, Judge] = OrderedDict()
    answer: object
    try:
        while True:
            what, task, *arguments = pipe.recv()
            try:
                if task.digest not in judges:
                    judges[task.digest] = Judge(task, isolation)  # type: ignore[arg-type]
                    if len(judges) > MOST_OPEN:
                        judges.popitem(last=False)[1].close()
                judges.move_to_end(task.digest)
                judge = judges[task.digest]
                answer = judge.judge(*arguments) if what == "judge" else judge.profile(*arguments)
            except ProfileError as error:
                answer = error
            except (TaskError, NurseryError, OracleLost) as error:
                answer = PoolError(f"{task.name}: {error}")
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the pool closed the pipe, or the user interrupted everything
    finally:
        for judge in judges.values():
            judge.close()


def follow_parent() -> None:
    """End at once when the process that started this one is gone, even if it was killed: what it
    wanted done here nobody waits for. Judges end with their owner."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def stay_on(core: int) -> None:
    """Hold this process, and what it starts, on one processor, with one thread each."""
    import torch

    os.sched_setaffinity(0, {core})
    # More threads, or more compilers of torch.compile, would only take turns. torch may have been
    # imported before, with a thread for every processor: on this one they waited for each other,
    # awake, whenever an arena was laid out, three times as long as a verdict takes.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    torch.set_num_threads(1)
