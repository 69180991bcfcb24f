"""Start a new run, or resume one from its log alone.

Invariant: `resume_run` restores the state that the log records, even if a kill cut the log at any
byte; at most the current step is lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent import __version__
from cuagent.agent.prompt import opening, skill, skill_digest
from cuagent.agent.run import REFERENCE, Run, tokens_of
from cuagent.agent.seen import recall_seen
from cuagent.agent.stop import Budget, Stop
from cuagent.agent.tried import Tried
from cuagent.durations import Durations
from cuagent.events import Emit, ignore
from cuagent.message import Message, Usage
from cuagent.models.model import ToolSpec
from cuagent.record import (
    INTERRUPTED,
    RUNS,
    RecordError,
    RunFolder,
    RunLog,
    attempt_of,
    branch_of,
    create_file,
    end_record,
    init_work,
    judgement_of,
    ladder_of,
    message_of,
    new_run,
    plain,
    read_records,
)

if TYPE_CHECKING:
    from cuagent.judge_protocol import Judge
    from cuagent.task import Task

Record = Mapping[str, Any]


def start_run(
    task: Task,
    judge: Judge,
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    budget: Budget | None = None,
    root: Path = RUNS,
    emit: Emit = ignore,
    config: Any = None,
    project: Path = Path(),
) -> Run:
    """Start a run: create its folder, its log with the first records, and the opening messages.

    The opening messages include the AGENTS.md of `project` and of the folders above it.
    Raises RecordError.
    """
    budget = budget or Budget()
    folder = new_run(task.name, root)
    log = RunLog(folder)
    log.write(
        "session",
        cuagent=__version__,
        task={**plain(task), "name": task.name, "digest": task.digest},
        model=model,
        tools=tools,
        skill_sha256=skill_digest(skill()),
        budget=budget,
        config=config,
    )
    run = Run(task, folder, log, judge, budget, emit, tools=tuple(tools))
    run.durations = _durations_of(judge)
    _prepare(run)
    _open(run, project)
    return run


def resume_run(
    folder: RunFolder,
    task: Task,
    judge: Judge,
    *,
    model: str,
    budget: Budget | None = None,
    tools: Sequence[ToolSpec] = (),
    emit: Emit = ignore,
    config: Any = None,
    project: Path = Path(),
) -> Run:
    """Restore a run from its log: conversation, attempts, costs and times, and its last stop.

    `budget` is for the whole run, including all earlier work. `config` are the settings of the
    command, for the log. Raises RecordError.
    """
    log = RunLog(folder)
    try:
        records = read_records(folder)
        _fits(folder, records, task)
        run = Run(task, folder, log, judge, budget or Budget(), emit, tools=tuple(tools))
        run.durations = _durations_of(judge)
        run.messages = [message_of(record) for record in branch_of(records)]
        run.context_tokens = tokens_of(run.messages)
        _recall(run, records)
        run.stop = Stop(end["stop"]) if (end := end_record(records)) else None
        log.write("resume", model=model, budget=run.budget, config=config)
        _prepare(run, trusted=log.is_made_here)
        _open(run, project)
        run.close_calls(INTERRUPTED)
    except BaseException:
        log.close()
        raise
    return run


def _durations_of(judge: Judge) -> Durations:
    """Return the judge's `Durations` (seconds by stage) for the run to share; a new one without
    any.
    """
    found = getattr(judge, "durations", None)
    return found if isinstance(found, Durations) else Durations()


def _fits(folder: RunFolder, records: Sequence[Record], task: Task) -> None:
    if not records or records[0]["type"] != "session":
        raise RecordError(f"{folder.id}: its log has no session record; start a new run")
    if records[0]["task"]["digest"] != task.digest:
        raise RecordError(f"{folder.id}: belongs to another task, not {task.name}; start a new run")


def _prepare(run: Run, *, trusted: bool = True) -> None:
    """Create the work folder with the reference in it, under git. Existing files stay unchanged.

    A run that is not `trusted` was recorded elsewhere: its git history and shell state are dropped.
    """
    if not trusted and run.folder.scratch.exists():
        shutil.rmtree(run.folder.scratch)
    for part in (run.folder.blobs, run.folder.work, run.folder.scratch):
        part.mkdir(exist_ok=True)
    if (reference := run.work / REFERENCE).is_symlink():
        reference.unlink()
    create_file(run.work, REFERENCE, run.task.source.encode("utf-8"), 0o444)
    if not init_work(run.folder, trusted=trusted):
        run.notice("git is not installed: attempts are in the log only", "warning")


def _open(run: Run, project: Path) -> None:
    """Add the opening messages that are missing, and take a snapshot of the files."""
    if len(run.messages) < 2:
        for message in opening(run.task, project)[len(run.messages) :]:
            run.add(message)
    run.snapshot()


def _recall(run: Run, records: Sequence[Record]) -> None:
    """Restore the run's attempts, ladder, steps, costs and seconds from its log records."""
    texts: dict[int, Record] = {}
    for record in records:
        match record["type"]:
            case "call":
                _recall_call(run, record)
            case "device":
                run.device_seconds += record["seconds"]
            case "attempt":
                texts[record["n"]] = record
            case "judgement":
                _recall_judgement(run, record, texts)
    _recall_ladder(run, records)
    run.earlier_seconds = _worked(records)
    run.outputs = sum(1 for _ in (run.work / ".outputs").glob("*"))
    run.todo = _todo(run.messages)
    recall_seen(run)


def _recall_call(run: Run, record: Record) -> None:
    run.steps += "purpose" not in record
    run.usage += Usage(**record["usage"])
    run.add_cost(record["cost"])


def _recall_judgement(run: Run, record: Record, texts: Mapping[int, Record]) -> None:
    """Restore one judged attempt from its judgement record; `texts` are attempt records by
    number.
    """
    n = record["attempt"]
    text = texts[n]
    tried = Tried(n, attempt_of(text["files"]), text["commit"], judgement_of(record))
    if record["effort"] == "record" and tried.accepted:
        run.settled[n] = tried
        return
    if record["effort"] == "record":
        run.settled.pop(n, None)
    run.tried[n - 1 : n] = [tried]


def _recall_ladder(run: Run, records: Sequence[Record]) -> None:
    """Use the recorded ladder as the baselines of the run, unless another machine measured it."""
    ladder = ladder_of(records)
    if ladder is not None and run.judge.start_from(ladder):
        run.ladder = ladder


def _worked(records: Sequence[Record]) -> float:
    """Return the seconds that the run worked, without the time between a stop and a resume."""
    total, last = 0.0, records[0]["time"]
    start: float | None = last
    for record in records:
        if record["type"] == "end":
            known = record.get("seconds")  # a log of unknown origin may hold anything
            worked = 0.0 if start is None else record["time"] - start
            total, start = known if isinstance(known, float) else total + worked, None
        elif record["type"] == "resume":
            total += 0.0 if start is None else last - start
            start = record["time"]
        last = record["time"]
    return total + (0.0 if start is None else last - start)


def _todo(messages: Sequence[Message]) -> list[dict[str, str]]:
    lists = (m.data["todo"] for m in reversed(messages) if "todo" in m.data)
    return list(next(lists, []))
