"""`cuagent verify`: judge one candidate, for people, scripts and other agents."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit, Refused
from cuagent.cli.trust import resolve_settings

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.task.task import Task


def verify(
    task: options.TaskSpec,
    candidate: Annotated[
        Path,
        typer.Argument(
            metavar="CANDIDATE", help="A folder with model_new.py, or a file with ModelNew."
        ),
    ],
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    backward: options.Backward = False,
    timing: options.Timing = "none",
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the verdict there, with all that `audit` needs."),
    ] = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Build a candidate and judge if it is correct.

    Exit code 0 accepted, 1 rejected, 2 usage, 3 infrastructure.
    """
    effort = options.effort(timing)
    options.refuse_nowhere(evidence)
    settings = resolve_settings({"device": device, "precision": precision}, trust)
    opened = options.open_task(task, inputs, init, settings, backward=backward)
    attempt = options.open_candidate(candidate)
    from cuagent.events import Notice
    from cuagent.judge import LocalJudge

    started = time.monotonic()
    with (
        options.activity(f"judging {candidate} on {opened.device}", silent=json) as emit,
        LocalJudge(opened, settings.isolation, emit, timed=effort is not None) as judge,
    ):
        if note := judge.referee.facts.training:
            emit(Notice(note, "warning"))
        judgement = judge.judge(attempt, effort)
    if evidence is not None:
        _write(evidence, opened, attempt, judgement)
    _report(judgement, time.monotonic() - started, json)
    raise typer.Exit(_code(judgement))


def _write(path: Path, task: Task, attempt: Attempt, judgement: Judgement) -> None:
    from json import dumps

    from cuagent.record.evidence import evidence
    from cuagent.record.origin import with_mac

    data = with_mac(evidence(task, attempt, judgement))
    try:
        path.write_text(dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise Refused(f"--evidence {path}: cannot be written: {error.strerror or error}") from error


def _report(judgement: Judgement, seconds: float, json: bool) -> None:
    """Print a judgement. `seconds` is the total wall time of opening, building, judging and
    timing."""
    if json:
        from json import dumps

        from cuagent.record import result

        print(dumps(result("verify", judgement, duration_s=round(seconds, 3)), indent=2))
        return
    from cuagent.ui.console import make_console
    from cuagent.ui.table import judgement_lines
    from cuagent.ui.text import duration, glyphs_for

    console = make_console(sys.stdout)
    for line in judgement_lines(judgement, console.width, glyphs_for(sys.stdout.encoding)):
        console.print(line, soft_wrap=True)
    console.print(f"  {duration(seconds)} in all", style="dim")


def _code(judgement: Judgement) -> Exit:
    from cuagent.verdict import Reason

    if judgement.verdict.accepted:
        return Exit.OK
    infrastructure = judgement.verdict.reason is Reason.INFRASTRUCTURE
    return Exit.INFRASTRUCTURE if infrastructure else Exit.NO
