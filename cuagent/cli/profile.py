"""`cuagent profile`: where the time of a task, or of a candidate for it, goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options


def profile(
    task: options.TaskSpec,
    candidate: Annotated[
        Path | None,
        typer.Argument(metavar="[CANDIDATE]", help="A folder or file; else the reference."),
    ] = None,
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    json: options.Json = False,
) -> None:
    """Show where the time of a module goes.

    By operator and by kernel; bytes and operations against what this machine can do.
    """
    from cuagent.config import resolve

    settings = resolve({"device": device, "precision": precision})
    opened = options.open_task(task, inputs, init, settings)
    attempt = options.open_candidate(candidate) if candidate is not None else None
    from cuagent.judge import Judge

    with (
        options.activity(
            f"profiling {candidate or opened.name} on {opened.device}", silent=json
        ) as emit,
        Judge(opened, settings.isolation, emit) as judge,
    ):
        found = judge.profile(attempt)
    if json:
        from json import dumps

        print(dumps(found.to_json(), indent=2))
        return
    for line in found.lines():
        print(line)
