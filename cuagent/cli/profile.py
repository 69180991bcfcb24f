"""`cuagent profile`: profile a task, or a candidate for it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.trust import resolve_settings

WIDTH = 500
"""Width in characters for a file or a pipe, large enough that nothing is cut."""


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
    backward: options.Backward = False,
    counters: Annotated[
        bool,
        typer.Option(
            "--counters", help="Also read hardware counters with ncu (CUDA only; adds seconds)."
        ),
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a chart there.")
    ] = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Show the time of a module by operator and kernel.

    Also compares its bytes and operations with the limits of this machine.
    """
    options.refuse_nowhere(svg)
    settings = resolve_settings({"device": device, "precision": precision}, trust)
    opened = options.open_task(task, inputs, init, settings, backward=backward)
    attempt = options.open_candidate(candidate) if candidate is not None else None
    from cuagent.build import build
    from cuagent.measure.profile.session import profile as profile_task
    from cuagent.measure.roofline.count import count
    from cuagent.task.packages import installed_imports
    from cuagent.ui.roofline_chart import roofline
    from cuagent.ui.roofline_chart import svg as chart
    from cuagent.worker import ForkServer

    # No judge is opened, because its oracle takes longer to start than the profile.
    what = f"profiling {candidate or opened.name} on {opened.device}"
    packages, on_gpu = installed_imports(opened.source), opened.device == "cuda"
    with (
        options.activity(what, silent=json),
        ForkServer(packages=packages, on_gpu=on_gpu) as fork_server,
    ):
        built = build(attempt, opened.device) if attempt is not None else None
        count(opened, fork_server)  # reports errors of the task itself
        found = profile_task(opened, attempt, built, fork_server=fork_server, counters=counters)
    if svg is not None:
        svg.write_text(chart(found), encoding="utf-8")
    if json:
        from json import dumps

        from cuagent.record import result

        print(dumps(result("profile", found), indent=2))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    from cuagent.ui.console import say

    for line in (*options.fitted(found.lines(width)), *roofline(found, width)):
        say(line)
