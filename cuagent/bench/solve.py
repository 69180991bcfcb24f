"""Solve one benchmark problem in a separate process: certify it, optimize it, and return its
record.

A failure of any kind becomes a record with its reason; only an interrupt leaves no record, so that
the problem runs again. With `optimize.py`, which this module calls, it is the only one of the bench
that calls the agent and the judge.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from cuagent.agent.ladder import prepare
from cuagent.bench.certificates import Certification, certify
from cuagent.bench.memory import Size, size_of
from cuagent.bench.memory_queue import claimed
from cuagent.bench.optimize import Interrupted, Report, Status, optimize, reporter
from cuagent.bench.order import DEFERRED, WAITING_FOR_MEMORY, Order, Rules
from cuagent.bench.results import FORMAT, INTERNAL, Record, tool_version
from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage
from cuagent.events import Emit, Phase
from cuagent.judge import LocalJudge
from cuagent.measure.rung_compiler import EarlyCompilation
from cuagent.models import ModelError, endpoints_of, make_model, prices_of
from cuagent.models.expert import ExpertModel
from cuagent.record import RecordError
from cuagent.sandbox import SandboxError
from cuagent.task import Task, TaskError, load_task
from cuagent.task.packages import installed_imports
from cuagent.verify.oracle.process import OracleLost
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

if TYPE_CHECKING:
    from cuagent.models.model import Model

SHOWN_S = 0.05
"""Stages shorter than this many seconds are left out of the problem's log."""


class Deferred(Exception):
    """Error: the problem needs most of its GPU's memory, and is postponed."""


def solve(
    order: Order, lock: DeviceLock, report: Report, fork_server: ForkServer | None = None
) -> Record:
    """Certify and optimize the order's problem; return its record. Raises Interrupted.

    `fork_server`: server to fork from, which stays open; None: one is started and closed.
    """
    started = time.monotonic()
    about: Record = {
        "format": FORMAT,
        "key": order.key,
        "problem": order.problem,
        "title": order.title,
        "group": order.group,
        "settings": order.settings.to_json(),
        "cuagent": tool_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    found: Record = {}
    log = _Log(started)
    lock.durations.observe = log.ended
    try:
        status = _solved(order, lock, _both(report, log), found, fork_server)
    except Interrupted:
        raise
    except Deferred:
        status = Status(DEFERRED, "it needs most of the GPU's memory")
    except Exception as error:
        if _was_interrupted(error):
            raise Interrupted from error
        status = Status("failed", _failure(error))
        if status.reason.startswith(INTERNAL):
            traceback.print_exception(error)
    seconds = {
        "total_s": time.monotonic() - started,
        "timing_s": lock.uses.exclusive_s,
        "shared_s": lock.uses.shared_s,
        "waiting_s": lock.durations.seconds(Stage.WAITING),
    }
    stages = lock.durations.to_json()
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    reason = " ".join(status.reason.split())[:500]
    return (
        about
        | found
        | {"status": status.name, "reason": reason, "seconds": rounded}
        | {"stages": stages, "lock": lock.uses.to_json()}
    )


class _Log:
    """Prints the phases and stages of a problem, with their seconds, into the problem's log."""

    def __init__(self, started: float) -> None:
        self._started = started

    def ended(self, stage: Stage, seconds: float) -> None:
        """Print the name and the seconds of a stage that ended, unless it took less than
        `SHOWN_S`."""
        if seconds >= SHOWN_S:
            self._print(f"  {stage} {seconds:.2f} s")

    def report(self, message: dict[str, Any]) -> None:
        """Print a progress message."""
        self._print(" ".join(f"{name}: {value}" for name, value in message.items()))

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:8.2f}  {text}", flush=True)


def _both(report: Report, log: _Log) -> Report:
    def reported(message: dict[str, Any]) -> None:
        log.report(message)
        report(message)

    return reported


def _was_interrupted(error: BaseException) -> bool:
    """Return True if an error occurred during the clean-up after `Interrupted`."""
    context = error.__context__
    return context is not None and (isinstance(context, Interrupted) or _was_interrupted(context))


def _failure(error: Exception) -> str:
    """Return the text for a record's `reason` field after an exception."""
    if isinstance(error, TaskError | RecordError | ModelError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    expected = ForkServerError | OracleLost | SandboxError | CudaMemoryError
    return text if isinstance(error, expected) else f"{INTERNAL}: {text}"


def _solved(
    order: Order, lock: DeviceLock, report: Report, found: Record, given: ForkServer | None
) -> Status:
    """Certify and optimize the problem; add parts of the record to `found` as they become known.
    Return the status."""
    settings = order.settings
    task = load_task(order.path, device=settings.device, precision=settings.precision)
    found |= {"task": task.digest, "device": _describe(task)}
    emit = reporter(report)
    with (
        _started(task) if given is None else nullcontext(given) as fork_server,
        _memory(order, task, fork_server, lock, emit, found) as is_large,
        # While the GPU certifies and opens the task, the processors are free.
        nullcontext() if is_large else EarlyCompilation(task, fork_server, lock) as compilation,
        ThreadPoolExecutor(1) as threads,
    ):
        ends = time.monotonic() + settings.max_time_s
        emit(Phase("certifying"))
        certifying = threads.submit(_certified, task, fork_server, lock)
        if is_large:  # the memory may not hold both
            certifying.result()
        emit(Phase("opening"))
        try:
            opened = fork_server, lock
            return _judged(order, task, opened, emit, found, certifying, compilation, ends)
        finally:
            if certifying.exception() is None:
                found |= {"certification": certifying.result().to_json()}


def _judged(
    order: Order,
    task: Task,
    opened: tuple[ForkServer, DeviceLock],
    emit: Emit,
    found: Record,
    certifying: Future[Certification],
    compilation: EarlyCompilation | None,
    ends: float,
) -> Status:
    """Open the judge of a problem and optimize it, while its certification and the compilation of
    the first rungs (None for a large task) end in the background. Return the status.

    No step begins after `ends`, a time of the monotonic clock in seconds.
    """
    fork_server, lock = opened
    with LocalJudge(
        task,
        order.settings.isolation,  # type: ignore[arg-type]
        emit,
        fork_server=fork_server,
        device_lock=lock,
        kernels_only=order.settings.rules is Rules.KERNELS_ONLY,
    ) as judge:
        admission = judge.admission()
        certification = certifying.result()
        if not admission.certifiable:
            return Status("not certifiable", admission.refusal)
        model = _model(order, task)
        judge.prepare_ladder(
            tuple if compilation is None else compilation.done,
            lambda: prepare(model, emit, lock.durations),
        )
        return optimize(order, task, judge, model, emit, found, certification, ends)


def _certified(task: Task, fork_server: ForkServer, lock: DeviceLock) -> Certification:
    """Certify the task, while the judge opens it in another thread."""
    with lock.durations.of(Stage.CERTIFYING), lock.shared() as give_way:
        try:
            return certify(task, fork_server, lock=lock.lock, give_way=give_way)
        except TaskError as error:  # the judge reports a reference that cannot run
            return Certification((), "not certified", 0, (str(error),))


def _started(task: Task) -> ForkServer:
    packages = installed_imports(task.source)
    return ForkServer(packages=packages, compiler=True, on_gpu=task.device == "cuda")


@contextmanager
def _memory(
    order: Order, task: Task, fork_server: ForkServer, lock: DeviceLock, emit: Emit, found: Record
) -> Iterator[bool]:
    """Reserve the problem's GPU memory inside this context, and add the reserved bytes to `found`;
    do nothing on a CPU. Raises Deferred.

    Yields True if the task is so large that no process may start earlier than necessary.
    """
    if lock.lock is None:
        yield False
        return
    with lock.durations.of(Stage.OPENING):
        size = Size(**order.size) if order.size else size_of(task, fork_server)
    if order.may_defer and size.takes_most:
        raise Deferred
    found |= {"claim_bytes": size.claim}
    emit(Phase(WAITING_FOR_MEMORY))
    asked = time.monotonic()
    with claimed(lock.lock.with_suffix(".memory"), size.claim, size.usable):
        lock.durations.add(Stage.WAITING, time.monotonic() - asked)
        yield size.is_large


def _model(order: Order, task: Task) -> Model:
    model = make_model(
        order.settings.model,
        task=task,
        endpoints=endpoints_of(order.endpoints or {}),
        prices=prices_of(order.prices or {}),
    )
    if isinstance(model, ExpertModel):
        model.explains = False
        model.kernels_only = order.settings.rules is Rules.KERNELS_ONLY
    return model


def _describe(task: Task) -> str:
    from cuagent.measure.roofline.ceilings import describe

    if task.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise TaskError(f"--device cuda: torch {torch.__version__} sees no GPU here")
    return describe(task.device)
