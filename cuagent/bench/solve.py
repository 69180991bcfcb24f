"""Solve one benchmark problem in a separate process: certify it, optimize it, and return its
record.

This is the only module of the bench that calls the agent and the judge. A failure of any kind
becomes a record with its reason; only an interrupt leaves no record, so that the problem runs
again.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.agent import HOOKS, TOOLS, Budget, Run, Stop, run_agent, start_at_ladder, start_run
from cuagent.agent.conclude import summarize
from cuagent.agent.ladder import prepare
from cuagent.bench.certificates import Certification, certify
from cuagent.bench.figures import arithmetic_seconds, figures
from cuagent.bench.memory import Size, size_of
from cuagent.bench.memory_queue import claimed
from cuagent.bench.order import DEFERRED, WAITING_FOR_MEMORY, Order, Rules
from cuagent.bench.record_form import FREE, KERNEL
from cuagent.bench.results import FORMAT, INTERNAL, Record, tool_version
from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage
from cuagent.events import Emit, Judged, LadderMeasured, Notice, Phase
from cuagent.judge import LocalJudge
from cuagent.judgement import Result, result_of
from cuagent.measure.ladder import NO_ROOM
from cuagent.measure.rung_compiler import EarlyCompilation
from cuagent.models import ModelError, endpoints_of, make_model, prices_of
from cuagent.models.expert import ExpertModel
from cuagent.record import RecordError
from cuagent.sandbox import SandboxError, Tier, probe
from cuagent.task import Task, TaskError, load_task
from cuagent.task.packages import installed_imports
from cuagent.verify.oracle.process import OracleLost
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

if TYPE_CHECKING:
    from cuagent.agent.tools import Tool
    from cuagent.models.model import Model

Report = Callable[[dict[str, Any]], None]
"""Function that receives progress: {"phase": text} or {"attempts": number, "best": ratio over
torch.compile}."""
SUBMIT = "submit"
OUT_OF_MEMORY = ("OutOfMemoryError", "of device memory, all that is free")
"""Words in a verdict's detail which mean that an attempt could not allocate GPU memory."""
SHOWN_S = 0.05
"""Stages shorter than this many seconds are left out of the problem's log."""


class Deferred(Exception):
    """Error: the problem needs most of its GPU's memory, and is postponed."""


class Interrupted(Exception):
    """Error: the benchmark was interrupted, so the problem has no result."""


@dataclass(frozen=True)
class Status:
    """Status of a finished problem, as in its record."""

    name: str
    """Outcome of a problem: `kernel`, `free option`, `no gain`, `no kernel`, `not certifiable`
    or `failed`. `no gain`: an attempt was accepted, but nothing is surely faster than eager."""
    reason: str


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
    emit = _reporter(report)
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
        return _optimized(order, task, judge, model, emit, found, certification, ends)


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
    return model


def _optimized(
    order: Order,
    task: Task,
    judge: LocalJudge,
    model: Model,
    emit: Emit,
    found: Record,
    certification: Certification,
    ends: float,
) -> Status:
    settings, left_s = order.settings, max(0.0, ends - time.monotonic())
    tools = _tools()
    run = start_run(
        task,
        judge,
        model=model.name,
        tools=[tool.spec for tool in tools],
        budget=Budget(settings.max_steps, settings.max_cost, left_s),
        root=Path(order.runs),
        emit=emit,
        config=settings.to_json(),
    )
    run.settles_rung = False
    run.kernels_only = settings.rules is Rules.KERNELS_ONLY
    with run.log:
        stop = run_agent(run, model, tools, (start_at_ladder, *HOOKS), emit)
    if stop is Stop.INTERRUPTED:
        raise Interrupted
    judgement = run.result.judgement if run.result else None
    # The timing of the result has measured the device's rates, so nothing is measured here.
    fork_server, lock = judge.referee.fork_server, judge.device_lock
    arithmetic_s = arithmetic_seconds(task, fork_server, lock) if judgement else None
    given = result_of(judgement, run.ladder, kernels_only=run.kernels_only)
    found |= figures(judgement, run.ladder, certification, arithmetic_s, given)
    found |= _effort_of(run, stop)
    if not order.alone and (why := _lacked_memory(run)):
        return Status("failed", f"out of memory beside other problems: {why}")
    return _status(run, stop, given)


def _effort_of(run: Run, stop: Stop) -> Record:
    return {
        "stop": str(stop),
        "run": run.folder.id,
        "attempts": len(run.tried),
        "accepted": sum(tried.accepted for tried in run.tried),
        "lax_passed": sum(_passed_lax(tried.judgement.verdict) for tried in run.tried),
        "steps": run.steps,
        "cost_usd": run.cost,
        "notes": _messages(run),
    }


def _passed_lax(verdict: Any) -> bool:
    return verdict.lax is not None and verdict.lax.passed


def _messages(run: Run) -> list[str]:
    """Return the message of the model's last submission, as a list of one text; [] if there is
    none."""
    calls = [call for message in run.messages for call in message.tool_calls]
    texts = []
    for call in calls:
        if call.name == SUBMIT:
            try:
                texts.append(str(json.loads(call.arguments).get("message", "")))
            except (ValueError, AttributeError):
                continue
    return [text for text in texts if text][-1:]


def _status(run: Run, stop: Stop, given: Result) -> Status:
    best = run.result.judgement if run.result is not None else None
    if best is not None and given is Result.KERNEL:
        return Status(KERNEL, str(best.verdict.reason))
    if best is None and stop in (Stop.MODEL_FAILED, Stop.JUDGE_FAILED):
        return Status("failed", f"{stop}: {run.error}")
    if given is Result.RUNG:
        return Status(FREE, summarize(run))
    if best is not None:
        return Status("no gain", summarize(run))
    if run.tried:
        verdict = run.tried[-1].judgement.verdict
        return Status("no kernel", f"{len(run.tried)} rejected, the last: {verdict.reason}")
    return Status("no kernel", (_messages(run) or [str(stop)])[0])


def _lacked_memory(run: Run) -> str:
    """Return what could not be run for lack of GPU memory: the attempt, or rungs of the ladder; ""
    if nothing.

    Memory that other problems use is not the fault of the attempt, so the problem can run again
    alone.
    """
    if run.judge.task.device != "cuda":
        return ""
    notes = run.ladder.notes if run.ladder is not None else ()
    found = [note for note in notes if NO_ROOM in note]
    if run.result is None:
        details = [tried.judgement.verdict.detail for tried in run.tried]
        found += [text for text in details if any(words in text for words in OUT_OF_MEMORY)]
    return found[-1] if found else ""


def _tools() -> Sequence[Tool]:
    """Return the agent's tools. Without a sandbox the shell tools are left out, because no user can
    approve commands."""
    confined = probe() is not Tier.NONE
    return [tool for tool in TOOLS if confined or not tool.name.startswith("bash")]


def _describe(task: Task) -> str:
    from cuagent.measure.roofline.ceilings import describe

    if task.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise TaskError(f"--device cuda: torch {torch.__version__} sees no GPU here")
    return describe(task.device)


def _reporter(report: Report) -> Emit:
    attempts = 0

    def emit(event: Any) -> None:
        nonlocal attempts
        match event:
            case Phase(text=text):
                report({"phase": text})
            case LadderMeasured(ladder=ladder):
                best = ladder.best
                report({"phase": f"best rung: {best.name if best else 'none'}"})
            case Judged(attempt=number, judgement=judgement):
                attempts = max(attempts, number)
                ratios = judgement.timing.ratios if judgement.timing else {}
                shown = ratios.get("compile")
                report({"attempts": attempts, "ratio": shown.value if shown else None})
            case Notice(text=text, level="error"):
                report({"phase": text})

    return emit
