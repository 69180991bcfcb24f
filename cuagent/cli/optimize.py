"""`cuagent optimize`: from a task to a faster module, watched as it happens."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit, Refused, complain, crashes_to

if TYPE_CHECKING:
    from cuagent.agent import Run, Stop
    from cuagent.config import Settings
    from cuagent.events import Emit
    from cuagent.models.model import Model
    from cuagent.task.task import Task

FORMATS = ("text", "json", "stream-json")


def optimize(
    task: options.TaskSpec,
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="expert or PROVIDER:MODEL; auto by the keys that are set."
        ),
    ] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Calls of the model.")] = None,
    max_cost: Annotated[float | None, typer.Option(metavar="USD", help="US dollars.")] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall time: 90s, 30m, 1h.")
    ] = None,
    run_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the run folder is made.")
    ] = Path(".cuagent", "runs"),
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the best attempt there at the end.")
    ] = None,
    output_format: Annotated[
        str,
        typer.Option(
            metavar="|".join(FORMATS),
            help="text for people; json is one result on stdout, the rest on stderr; "
            "stream-json is one event a line.",
        ),
    ] = "text",
) -> None:
    """Make a module faster, and prove it.

    Analyze, write kernels, compile, verify, time, and keep the best.

    Exit code 0 when the run ended by itself or at a limit, with a gain or without; 1 when the
    model failed; 2 usage; 3 infrastructure; 130 interrupted.
    """
    from cuagent.config import resolve

    if output_format not in FORMATS:
        raise Refused(f"--output-format: no {output_format!r}; use {', '.join(FORMATS)}")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out}: exists already; give --out a folder that is empty or not there yet")
    settings = resolve(
        {
            "model": model,
            "device": device,
            "precision": precision,
            "max_steps": max_steps,
            "max_cost": max_cost,
            "max_time": max_time,
        }
    )
    opened = options.open_task(task, inputs, init, settings)
    speaker = _model(settings, opened)
    with ExitStack() as stack:
        emit = _view(output_format, stack)
        run, stop = _session(opened, speaker, settings, run_dir, emit)
    if output_format == "json":
        from json import dumps

        print(dumps(_result(run, stop)))
    if out is not None:
        _export(run, out)
    raise typer.Exit(_code(run, stop))


def _session(
    task: Task, model: Model, settings: Settings, root: Path, emit: Emit
) -> tuple[Run, Stop]:
    """The run itself. Its folder is made once the task has been opened: a refusal leaves none."""
    from cuagent.agent import TOOLS, Budget, run_agent, start_run
    from cuagent.events import Phase
    from cuagent.judge import Judge
    from cuagent.record import plain

    emit(Phase(f"opening {task.name} on {task.device}"))
    with Judge(task, settings.isolation, emit) as judge:
        run = start_run(
            task,
            judge,
            model=model.name,
            tools=[tool.spec for tool in TOOLS],
            budget=Budget(settings.max_steps, settings.max_cost, settings.max_time),
            root=root,
            emit=emit,
            config=plain(settings),
        )
        with run.log, crashes_to(run.folder.path):
            return run, run_agent(run, model, emit=emit)


def _model(settings: Settings, task: Task) -> Model:
    from cuagent.models import ModelError, make_model

    try:
        return make_model(None if settings.model == "auto" else settings.model, task=task)
    except ModelError as error:
        raise Refused(f"--model {settings.model}: {error}") from error


def _view(output_format: str, stack: ExitStack) -> Emit:
    if output_format == "stream-json":
        from cuagent.ui.jsonl import JsonLines

        return JsonLines(sys.stdout)
    from cuagent.ui.terminal import Terminal

    return stack.enter_context(Terminal(sys.stdout if output_format == "text" else sys.stderr))


def _result(run: Run, stop: Stop) -> dict[str, Any]:
    """What a program wants to know at the end."""
    from cuagent.agent.conclude import has_gain, summarize
    from cuagent.record import plain

    best = run.final or run.best
    return {
        "run": run.folder.id,
        "folder": str(run.folder.path),
        "task": run.task.name,
        "device": str(run.task.device),
        "stop": str(stop),
        "gain": best is not None and has_gain(best),
        "summary": summarize(run),
        "attempt": best.n if best else None,
        "best": plain(best.judgement) if best else None,
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
        "usage": plain(run.usage),
        "cost": run.cost,
        "error": run.error or None,
    }


def _export(run: Run, out: Path) -> None:
    from cuagent.package import export

    best = run.final or run.best
    if best is None:
        complain(f"{out}: not made, no attempt was accepted")
        return
    export(best.attempt, run.task, best.judgement, out)


def _code(run: Run, stop: Stop) -> Exit:
    from cuagent.agent import Stop

    match stop:
        case Stop.INTERRUPTED:
            complain(f"interrupted; what was kept: cuagent show {run.folder.id}")
            return Exit.INTERRUPTED
        case Stop.MODEL_FAILED:
            return Exit.NO
    return Exit.OK
