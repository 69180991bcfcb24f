"""`cuagent optimize`: from a task to a faster module, watched as it happens."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit, Refused, complain
from cuagent.cli.session import Left, left, opened, resume_command, speaker

if TYPE_CHECKING:
    from cuagent.agent import Run, Stop
    from cuagent.config import Settings
    from cuagent.events import Emit
    from cuagent.models.model import Model
    from cuagent.task.task import Task

RUNS = Path(".cuagent", "runs")
FORMATS = ("text", "json", "stream-json")
ALONE = ("expert", "replay", "scripted")
"""Models that take no instructions: nobody needs to sit by."""
LONG = 10.0
"""Seconds after which a run's end is worth a signal."""


def optimize(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="A file with Model, get_inputs and get_init_inputs, or path.py:ClassName.",
        ),
    ] = None,
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
    max_device_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time of judging, timing and profiling.")
    ] = None,
    approval: Annotated[
        str | None,
        typer.Option(
            metavar="ask|auto|yolo",
            help="What is asked before a command runs: all, what no sandbox holds, nothing.",
        ),
    ] = None,
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--no-interactive",
            "-i",
            help="Sit by and talk; by default on a terminal where a language model works.",
        ),
    ] = None,
    goes_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Take up the newest run again.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", metavar="RUN", help="Take up that run again.")
    ] = None,
    headless: Annotated[
        bool,
        typer.Option("--print", "-p", help="The result alone on stdout, the rest on stderr."),
    ] = False,
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders are.")] = RUNS,
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
    again = left(resume, run_dir) if goes_on or resume else None
    if task is None and again is None:
        raise Refused("Missing argument 'TASK'; see cuagent optimize --help")
    settings = resolve(
        {
            "model": model,
            "device": device,
            "precision": precision,
            "approval": approval,
            "max_steps": max_steps,
            "max_cost": max_cost,
            "max_time": max_time,
            "max_device_time": max_device_time,
        }
    )
    opening = _task(task, inputs, init, settings, again)
    voice = speaker(_name(settings, again), opening, settings)
    talks = _talks(interactive, headless or output_format != "text", voice)
    if settings.approval == "ask" and not talks:
        raise Refused("--approval ask: nobody can be asked without --interactive on a terminal")
    if talks:
        run, stop = _sit(opening, voice, settings, run_dir, again)
    else:
        run, stop = _watch(opening, voice, settings, run_dir, again, output_format, headless)
    if out is not None:
        _export(run, out)
    raise typer.Exit(_code(run, stop, run_dir))


def _watch(
    task: Task,
    model: Model,
    settings: Settings,
    run_dir: Path,
    again: Left | None,
    output_format: str,
    headless: bool,
) -> tuple[Run, Stop]:
    """From beginning to end, with nobody who answers."""
    from cuagent.agent import TOOLS, run_agent
    from cuagent.cli.approval import approved

    with ExitStack() as stack:
        emit = _view(output_format, headless, stack)
        run = stack.enter_context(opened(task, model, settings, run_dir, emit, again))
        stop = run_agent(run, model, approved(TOOLS, settings.approval), emit=emit)
    if output_format == "json":
        from json import dumps

        print(dumps(_result(run, stop)))
    elif output_format == "text":
        if headless:
            from cuagent.agent.conclude import summarize

            print(summarize(run))
        _notify(run, stop, settings)
    return run, stop


def _sit(
    task: Task, model: Model, settings: Settings, run_dir: Path, again: Left | None
) -> tuple[Run, Stop]:
    """With the user at the terminal, until they leave."""
    from rich.text import Text

    from cuagent.agent import TOOLS
    from cuagent.cli.approval import approved
    from cuagent.cli.interactive import (
        COMMANDS,
        Session,
        asker,
        converse,
        history_file,
        interrupt_main,
    )
    from cuagent.ui.prompt import Prompt, Work
    from cuagent.ui.terminal import Terminal

    said: list[str] = []

    def take(line: str) -> None:
        if line.startswith("/q"):
            interrupt_main()
        elif line.startswith("/"):
            view.say([Text(f"  {line}: not before the task is open", "yellow")])
        else:
            said.append(line)
            view.say([Text(f"  queued: {line}", "dim")])

    with ExitStack() as stack:
        prompt = stack.enter_context(Prompt(COMMANDS, history_file()))
        view = stack.enter_context(Terminal(sys.stdout, foot=True))
        prompt.status = view.foot_lines
        with prompt.working(Work(take, interrupt_main)):
            run = stack.enter_context(opened(task, model, settings, run_dir, view, again))
        for line in said:
            run.inbox.put(line)
        view.recall((tried.n, tried.judgement) for tried in run.tried)
        tools = approved(TOOLS, settings.approval, asker(prompt, view, settings))
        session = Session(run, model, tools, settings, view, prompt)
        return run, converse(session, begin=again is None)


def _talks(wanted: bool | None, piped: bool, model: Model) -> bool:
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if wanted and (piped or not terminal):
        raise Refused("--interactive needs a terminal, and text as its output format")
    if wanted is not None:
        return wanted
    return terminal and not piped and model.name.partition(":")[0] not in ALONE


def _task(
    task: str | None,
    inputs: str | None,
    init: str | None,
    settings: Settings,
    again: Left | None,
) -> Task:
    if task is not None:
        return options.open_task(task, inputs, init, settings)
    assert again is not None
    return again.task


def _name(settings: Settings, again: Left | None) -> str:
    """The model: what the user says, else the one that spoke in the run before."""
    if again is not None and settings.origins["model"] == "default":
        return again.model
    return settings.model


def _view(output_format: str, headless: bool, stack: ExitStack) -> Emit:
    if output_format == "stream-json":
        from cuagent.ui.jsonl import JsonLines

        return JsonLines(sys.stdout)
    from cuagent.ui.terminal import Terminal

    to_stdout = output_format == "text" and not headless
    return stack.enter_context(Terminal(sys.stdout if to_stdout else sys.stderr))


def _notify(run: Run, stop: Stop, settings: Settings) -> None:
    from cuagent.ui.notify import notify

    if run.seconds >= LONG:
        text = f"cuagent: {run.task.name}: {stop}"
        if wrong := notify(text, sys.stderr, settings.notify, settings.notify_command):
            complain(wrong)


def _result(run: Run, stop: Stop) -> dict[str, Any]:
    """What a program wants to know at the end."""
    from cuagent.agent.conclude import summarize
    from cuagent.record import plain

    best = run.final or run.best
    return {
        "run": run.folder.id,
        "folder": str(run.folder.path),
        "task": run.task.name,
        "device": str(run.task.device),
        "stop": str(stop),
        "gain": best is not None and best.judgement.gains,
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


def _code(run: Run, stop: Stop, run_dir: Path) -> Exit:
    from cuagent.agent import Stop

    on = f"go on with: {resume_command(run, run_dir)}"
    match stop:
        case Stop.SUBMITTED | Stop.NO_GAIN | Stop.STALLED | Stop.LOOPING:
            return Exit.OK
        case Stop.INTERRUPTED:
            complain(f"interrupted; what was kept: cuagent show {run.folder.id}; {on}")
            return Exit.INTERRUPTED
    complain(f"{stop}; {on}")
    match stop:
        case Stop.MODEL_FAILED:
            return Exit.NO
        case Stop.JUDGE_FAILED:
            return Exit.INFRASTRUCTURE
    return Exit.OK
