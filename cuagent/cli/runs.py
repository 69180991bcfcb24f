"""`cuagent runs`, `show` and `replay`: list and show recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.exits import Refused

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.record import RunFolder

RunDir = Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders are.")]
RUNS = Path(".cuagent") / "runs"


def runs(run_dir: RunDir = RUNS, json: options.Json = False) -> None:
    """List the runs, newest last."""
    from cuagent.record import list_runs

    rows = [_row(folder) for folder in list_runs(run_dir)]
    if json:
        from json import dumps

        print(dumps(rows, indent=2))
        return
    from cuagent.ui.console import say
    from cuagent.ui.text import one_line

    rows = [{key: one_line(value) for key, value in row.items()} for row in rows]
    if not rows:
        print(f"no runs in {run_dir}; start one with: cuagent optimize TASK")
    first, second = (max((len(row[key]) for row in rows), default=0) for key in ("run", "model"))
    lines = (
        f"{row['run']:<{first}}  {row['model']:<{second}}  {row['stop']:<12} {row['summary']}"
        for row in rows
    )
    for line in options.fitted(lines):
        say(line)


def show(
    run: options.RunName = "latest",
    brief: Annotated[
        bool, typer.Option("--brief", "-b", help="Only the attempts and the result.")
    ] = False,
    run_dir: RunDir = RUNS,
    json: options.Json = False,
) -> None:
    """Show a run: the result, then each step.

    On a terminal in a pager ($PAGER, else less), where `/step` and `n` go from step to step.
    """
    folder, records = read(run, run_dir)
    if json:
        from json import dumps

        print(dumps(_row(folder) | {"records": records}))
        return
    if brief:
        _brief(folder, records)
        return
    from cuagent.ui.console import UNCUT, make_console
    from cuagent.ui.pager import page
    from cuagent.ui.story import story
    from cuagent.ui.text import glyphs_for

    if not records:
        raise Refused(f"{folder.id}: its log is empty; there is nothing to show")
    console = make_console(sys.stdout)
    width = console.width if console.width == UNCUT else min(console.width, 120)
    with readable(folder):
        terminal = console if console.is_terminal else None
        page(story(folder, records, width, glyphs_for(console.encoding), terminal), console)


def _brief(folder: RunFolder, records: list[dict[str, Any]]) -> None:
    from cuagent.events import Judged, LadderMeasured, RunEnded, RunStarted
    from cuagent.ui.recorded import events_of
    from cuagent.ui.terminal import Terminal

    with Terminal(sys.stdout, recorded=True) as view, readable(folder):
        for event in events_of(folder, records):
            if isinstance(event, RunStarted | LadderMeasured | Judged | RunEnded):
                view(event)


def replay(run: options.RunName = "latest", run_dir: RunDir = RUNS) -> None:
    """Replay a recorded run as it was shown live."""
    folder, records = read(run, run_dir)
    from cuagent.ui.recorded import events_of
    from cuagent.ui.terminal import Terminal

    with Terminal(sys.stdout, recorded=True) as view, readable(folder):
        for event in events_of(folder, records, clocked=True):
            view(event)


def read(run: str, run_dir: Path = RUNS) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Return the folder and the records of the run with this name. Raises RecordError and
    Refused."""
    from cuagent.record import find_run, read_records

    if not (run_dir.is_dir() or Path(run).is_dir()):
        raise Refused(f"{run_dir}: no runs here; start one with: cuagent optimize TASK")
    folder = find_run(run, run_dir)
    return folder, read_records(folder)


def attempt_in(records: list[dict[str, Any]], digest: str) -> Attempt:
    """Return the attempt with this digest from the records of a run."""
    from cuagent.record import attempt_of

    for record in records:
        if record["type"] == "attempt" and record["digest"] == digest:
            return attempt_of(record["files"])
    raise Refused(f"the log does not hold the text of attempt {digest[:16]}")


MALFORMED = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(RecursionError, ArithmeticError),
)
"""Errors of computing with a log whose values have other types or sizes than expected."""


@contextmanager
def readable(folder: RunFolder) -> Iterator[None]:
    """Convert any error in the block to RecordError, because a log from elsewhere may be
    malformed."""
    from cuagent.record import RecordError

    try:
        yield
    except MALFORMED as error:
        if folder.is_made_here:
            raise
        what = f"{type(error).__name__}: {error}"
        raise RecordError(f"{folder.log}: damaged or forged ({what})") from error


def chosen_attempt(records: list[dict[str, Any]], number: int, run: str) -> Judgement:
    """Return the valid judgement of attempt `number`. Raises Refused if the attempt is not
    accepted."""
    from cuagent.record import judgements_of

    latest = judgements_of(records)
    accepted = [n for n, judgement in latest.items() if judgement.verdict.accepted]
    if number not in accepted:
        have = f"accepted are {', '.join(map(str, accepted))}" if accepted else "none is accepted"
        raise Refused(f"{run}: attempt {number} is not accepted; {have}")
    return latest[number]


def attempt_name(records: list[dict[str, Any]], judgement: Judgement | None, run: str) -> str:
    """Return words for a run and the attempt of a judgement in it: `attempt 3 of RUN`.

    `latest` may name another run than the user has in mind.
    """
    from cuagent.record import judgements_of

    every = judgements_of(records).items() if judgement is not None else ()
    numbers = [n for n, j in every if judgement is not None and j.attempt == judgement.attempt]
    return f"attempt {numbers[0]} of {run}" if numbers else f"run {run}"


def _row(folder: RunFolder) -> dict[str, str]:
    from cuagent.record import RecordError, read_records

    try:
        with readable(folder):
            return _row_of(folder.id, read_records(folder, blobs=False))
    except RecordError as error:  # a run that cannot be read must not hide the others
        return {"run": folder.id, "model": "?", "stop": "unreadable", "summary": str(error)}


def _row_of(run: str, records: list[dict[str, Any]]) -> dict[str, str]:
    from cuagent.record import end_record

    session = records[0] if records else {}
    end = end_record(records) or {}
    return {
        "run": run,
        "model": str(session.get("model", "?")),
        "stop": str(end.get("stop", "unfinished")),
        "summary": str(end.get("summary", "")),
    }
