"""`cuagent report`: write one run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Refused
from cuagent.cli.runs import RUNS, RunDir, read, readable
from cuagent.cli.script import script_results


def report(
    run: options.RunName = "latest",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default: RUN.html here.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace the file if it exists.")
    ] = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Write a run as one HTML page with charts and kernels. No network."""
    folder, records = read(run, run_dir)
    if not records:
        raise Refused(f"{folder.id}: its log is empty; there is nothing to report")
    path = Path(f"{folder.id}.html") if out is None else out
    if path.exists() and not force:
        raise Refused(f"{path}: exists already; give --force, or --out FILE")
    from cuagent.record import write_file
    from cuagent.ui.console import say
    from cuagent.ui.report import report as page

    with readable(folder):
        text = page(folder.id, records, script_results(folder.path))
    try:
        write_file(path.absolute().parent, path.name, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror or error})") from error
    say(f"written to {path}")
