"""`cuagent profile`: where the time of a task, or of a candidate for it, goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options

if TYPE_CHECKING:
    from cuagent.measure.profile import Profile


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
    counters: Annotated[
        bool, typer.Option("--counters", help="Hardware counters too, by ncu (CUDA; seconds).")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a chart there.")
    ] = None,
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
        found = judge.profile(attempt, counters=counters)
    if svg is not None:
        from cuagent.measure.chart import svg as chart

        svg.write_text(chart(found), encoding="utf-8")
    if json:
        from json import dumps

        print(dumps(found.to_json(), indent=2))
        return
    for line in _fitted(found):
        print(line)


def _fitted(found: Profile) -> Iterator[str]:
    """The lines as wide as the terminal is; in a pipe as wide as they are meant to be."""
    import shutil

    from cuagent.ui.text import wrap

    if not sys.stdout.isatty():
        yield from found.lines()
        return
    width = shutil.get_terminal_size().columns
    for line in found.lines(width):
        if "|" in line:  # a row of a table: cut to fit already
            yield line
        else:
            first, *rest = wrap(line, max(width - 2, 20))
            yield first
            yield from (f"  {piece}" for piece in rest)
