"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli.exits import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from cuagent.attempt import Attempt
    from cuagent.config import Settings
    from cuagent.events import Emit
    from cuagent.task.task import Task

TaskSpec = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A file with Model, get_inputs and get_init_inputs, or path.py:ClassName.",
    ),
]
Inputs = Annotated[
    str | None, typer.Option(metavar="SPEC", help='What forward takes: "f32[8,512], i64[8]".')
]
Init = Annotated[
    str | None, typer.Option(metavar="SPEC", help='What the constructor takes: "512, eps=1e-5".')
]
Device = Annotated[str | None, typer.Option(metavar="auto|cpu|cuda", help="Where it runs.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="match|tf32|bf16|fp16", help="Arithmetic admitted in place of the task's own."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="An ID or a part of one, a path, or `latest`.")
]


def open_task(spec: str, inputs: str | None, init: str | None, settings: Settings) -> Task:
    """The task with the settings that hold here. Raises TaskError."""
    from cuagent.task import load_task

    return load_task(
        spec, inputs=inputs, init=init, device=settings.device, precision=settings.precision
    )


def open_candidate(path: Path) -> Attempt:
    """The candidate, frozen. Raises AttemptError and Refused."""
    from cuagent.attempt import freeze

    if not path.exists():
        raise Refused(f"{path}: no such file or folder; name a candidate")
    return freeze(path)


@contextmanager
def activity(text: str, *, silent: bool) -> Iterator[Emit]:
    """Shows on stderr what is being done; nothing where a program reads the result."""
    from cuagent.events import Phase, ignore
    from cuagent.ui.terminal import Terminal

    if silent:
        yield ignore
        return
    with Terminal(sys.stderr) as view:
        view(Phase(text))
        yield view
