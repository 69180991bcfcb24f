"""Open a new or resumed run for `optimize`, with its judge, log and budget.

It only connects the packages. The folder of a new run is made after its task has been opened, so
that a refused task leaves no folder.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.cli.exits import Refused, crashes_to
from cuagent.cli.interrupts import interrupts_recorded, raise_if_interrupted
from cuagent.cli.runs import readable
from cuagent.cli.trust import require_trusted_run

if TYPE_CHECKING:
    from cuagent.agent import Budget, Hook, Run, Seed
    from cuagent.config import Settings
    from cuagent.events import Emit
    from cuagent.judge import LocalJudge
    from cuagent.models.model import Model
    from cuagent.record import RunFolder
    from cuagent.task.task import Task


LONGEST_PREPARATION_S = 10.0
"""Longest wait in seconds for a model that prepares itself for a task that was refused."""
MODEL_TIMEOUT = "--model-timeout"
LIMITS = ("model_timeout", "max_steps", "max_cost", "max_time", "max_device_time")
"""Settings that a run keeps when it is continued, if they were given as options."""
NEW_CONTRACT = "it began before torch's own settings became the baseline of its precision"


@dataclass(frozen=True)
class ResumedRun:
    """An earlier run that is to be continued."""

    folder: RunFolder
    task: Task
    model: str
    """Name of the model that answered last."""
    stop: str | None
    """Reason why the run ended; None if the log has no end record."""
    approval: str | None = None
    """`ask` if the run began with `--approval ask`, else None: a wider approval is not kept."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Values of LIMITS that the last command which worked on the run had from its options.

    Empty for a run of unknown origin, which must not raise the limits of this user.
    """


@dataclass(frozen=True)
class Plan:
    """Checked arguments of an `optimize` command."""

    task: Task
    model: Model
    settings: Settings
    run_dir: Path
    resumed: ResumedRun | None
    """The run to continue; None for a new run."""
    message: str | None
    """First message of the user to the model; None if there is none."""
    output_format: str
    headless: bool
    fresh: bool = False
    """True to time the baselines again instead of using cached times."""
    seed: Seed | None = None
    """The user's own kernel to start from; None if there is none."""


def first_hooks(plan: Plan) -> tuple[Hook, ...]:
    """Return the hooks that open a run: measure the ladder, then judge the user's own kernel."""
    from cuagent.agent import start_at_ladder, start_from

    return (start_at_ladder,) if plan.seed is None else (start_at_ladder, start_from(plan.seed))


def find_resumable(name: str | None, run_dir: Path, *, trust: bool = False) -> ResumedRun:
    """Return the run with this name, or the newest one if `name` is None.

    The user is asked before a run of unknown origin is used, unless `trust`. Raises RecordError,
    TaskError and Refused.
    """
    from cuagent.record import end_record, find_run, read_records
    from cuagent.task import Precision, load_task
    from cuagent.task.task import recorded_precision

    folder = find_run(name, run_dir)
    records = read_records(folder, blobs=True)
    if not records or "task" not in records[0]:
        raise Refused(f"{folder.id}: the start of its log is missing; start a new run")
    with readable(folder):
        kept = records[0]["task"]
        does = f"To continue it, the code in {kept['path']} and the run's kernels would run"
        is_own = require_trusted_run(folder, does, trust)
        if Path(kept["path"]).resolve() != Path(kept["path"]):
            raise Refused(f"{kept['path']}: a link leads elsewhere now; start a new run")
        task = load_task(
            f"{kept['path']}:{kept['entry']}",
            inputs=kept["inputs"],
            init=kept["init"],
            device=kept["device"],
            precision=recorded_precision(kept),
        )
    if "settings" not in kept and task.precision is not Precision.FP32:
        raise Refused(f"{folder.id}: {NEW_CONTRACT}; start a new run")
    if task.digest != kept["digest"]:
        raise Refused(f"{task.path}: has changed since {folder.id} began; start a new run")
    model = next(r["model"] for r in reversed(records) if r["type"] in ("session", "resume"))
    end = end_record(records)
    configs = [config for r in records if (config := r.get("config")) is not None]
    stop = end["stop"] if end else None
    limits = _given(configs[-1]) if configs and is_own else {}
    approval = _approval(records[0].get("config"))
    return ResumedRun(folder, task, model, stop, approval, limits)


def _given(config: Any) -> dict[str, float]:
    """Return the LIMITS that a command's recorded settings have from its options."""
    match config:
        case {"origins": {**origins}}:
            given = {k: config.get(k) for k in LIMITS if origins.get(k) == _flag(k)}
            return {k: n for k, n in given.items() if isinstance(n, int | float) and n > 0}
    return {}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _approval(config: Any) -> str | None:
    """Return `ask` if a run's recorded settings have it from `--approval`, else None."""
    match config:
        case {"approval": "ask", "origins": {"approval": "--approval"}}:
            return "ask"
    return None


def open_model(
    name: str, task: Task, settings: Settings, *, trust: bool = False, ask: bool = True
) -> Model:
    """Create the model with this name.

    The user is asked before `replay` uses a run of unknown origin, unless `trust`; `ask=False`
    refuses such a run without a question. Raises RecordError and Refused.
    """
    kind, _, recorded = name.partition(":")
    if kind == "replay":
        from cuagent.record import find_run

        does = "The commands and kernels that its model wrote would be run"
        require_trusted_run(find_run(recorded), does, trust, ask=ask)
    from cuagent.models import ModelError, endpoints_of, make_model, prices_of

    try:
        return make_model(
            None if name == "auto" else name,
            task=task,
            endpoints=endpoints_of(settings.endpoints),
            prices=prices_of(settings.prices),
            stall=_stall(name, settings),
        )
    except ModelError as error:
        raise Refused(f"--model {name}: {error}") from error


def _stall(name: str, settings: Settings) -> float | None:
    """Return the time-out in seconds for a model; None to use that of its table `[endpoints.NAME]`.

    `--model-timeout` overrides the table; the table overrides every other setting.
    """
    table = settings.endpoints.get(name.partition(":")[0], {})
    own = isinstance(table, Mapping) and "stall" in table
    flag = settings.origins["model_timeout"] == MODEL_TIMEOUT
    return None if own and not flag else settings.model_timeout


@contextmanager
def opened(plan: Plan, emit: Emit) -> Iterator[Run]:
    """Open the run with its judge and log for the block, in which no interrupt is lost."""
    from cuagent.agent import TOOLS, resume_run, start_run
    from cuagent.events import Phase
    from cuagent.judge import LocalJudge
    from cuagent.record import plain

    task, settings, resumed = plan.task, plan.settings, plan.resumed
    if (greet := getattr(plan.model, "greet", None)) is not None:
        emit(Phase(f"connecting to {plan.model.name}"))
        greet()
    emit(Phase(f"opening {task.name} on {task.device}"))
    if (preload := getattr(plan.model, "preload", None)) is not None:
        threading.Thread(target=preload, daemon=True).start()
    with (
        interrupts_recorded() as interrupted,
        LocalJudge(task, settings.isolation, emit, fresh=plan.fresh) as judge,
    ):
        raise_if_interrupted(interrupted)
        judge.start_ladder()
        if resumed is None:
            with _preparing(plan.model, judge):
                _admit(judge, emit)
            raise_if_interrupted(interrupted)
            judge.open_first_rungs()
        both: dict[str, Any] = {
            "model": plan.model.name,
            "tools": [tool.spec for tool in TOOLS],
            "budget": budget(settings),
            "emit": emit,
            "config": plain(settings),
        }
        if resumed is None:
            run = start_run(task, judge, root=plan.run_dir, **both)
        else:
            run = resume_run(resumed.folder, task, judge, **both)
        with run.log, crashes_to(run.folder.path):
            if plan.message:
                run.inbox.put(plan.message)
            run.cancelled = interrupted  # checked at each wait of the run and after each call
            yield run


@contextmanager
def _preparing(model: Model, judge: LocalJudge) -> Iterator[None]:
    """Let a model that can prepare itself begin while the task is examined in another process.

    It works on after the block, and its next preparation waits for it. If the block fails, because
    the task is refused, wait for it instead: Python cannot end while its thread runs torch.
    """
    prepare = None if judge.referee.large else getattr(model, "prepare", None)
    if prepare is None:
        yield
        return

    def work() -> None:
        with suppress(Exception):  # the next preparation meets it again
            prepare()

    thread = threading.Thread(target=work, name="cuagent-preparing", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        thread.join(LONGEST_PREPARATION_S)
        raise


def _admit(judge: LocalJudge, emit: Emit) -> None:
    """Raise Refused if the task cannot be certified; show the notes of its examination."""
    from cuagent.events import Notice, Phase

    emit(Phase(f"examining {judge.task.name}"))
    admission = judge.admission()
    if not admission.certifiable:
        raise Refused(f"{judge.task.path}: {admission.refusal}")
    for note in admission.notes:
        emit(Notice(note, "warning"))


def budget(settings: Settings) -> Budget:
    """Return the limits of the whole run, which include the work of earlier sessions."""
    from cuagent.agent import Budget

    return Budget(
        settings.max_steps, settings.max_cost, settings.max_time, settings.max_device_time
    )


def resume_command(run: Run, run_dir: Path) -> str:
    """Return the command that continues this run, with twice the limit that ended it.

    After a full context the command has a placeholder for another model.
    """
    from cuagent.agent import Stop
    from cuagent.record import RUNS

    words = ["cuagent", "optimize", "--resume", run.folder.id]
    if run_dir.resolve() != RUNS.resolve():
        words += ["--run-dir", str(run_dir)]
    wider: Mapping[Any, tuple[str, float | None]] = {
        Stop.STEP_LIMIT: ("--max-steps", run.budget.steps),
        Stop.COST_LIMIT: ("--max-cost", run.budget.cost),
        Stop.TIME_LIMIT: ("--max-time", run.budget.seconds),
        Stop.DEVICE_LIMIT: ("--max-device-time", run.budget.device_seconds),
    }
    if run.stop in wider:
        flag, limit = wider[run.stop]
        words += [flag, f"{2 * (limit or 0):g}"]
    if run.stop is Stop.CONTEXT_FULL:
        words += ["--model", "ONE-WITH-A-LARGER-CONTEXT"]
    return shlex.join(words)
