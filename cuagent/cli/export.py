"""`cuagent export`: the best attempt of a run as a folder that works without cuagent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Refused
from cuagent.cli.runs import RUNS, RunDir, attempt_in, read


def export(
    run: options.RunName,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to make; it may not hold anything.")
    ],
    run_dir: RunDir = RUNS,
) -> None:
    """Write the best attempt as a folder of its own.

    It holds model_new.py, the kernels, the small loader and a README with the measured figures,
    and works without cuagent.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out}: exists already; name a folder that is empty or not there yet")
    folder, records = read(run, run_dir)
    from cuagent.package import export as write_package
    from cuagent.record import revive
    from cuagent.task.task import Task
    from cuagent.ui.recorded import best_of

    best = best_of(records)
    if best is None:
        raise Refused(f"{folder.id}: no attempt was accepted, so there is nothing to export")
    task = revive(Task, records[0]["task"])
    made = write_package(attempt_in(records, best.attempt), task, best, out)
    print(f"exported to {made}")
