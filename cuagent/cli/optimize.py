"""`cuagent optimize`: turn a task into a faster module and show the progress."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit, Refused, print_stderr
from cuagent.cli.script import report_on_script, require_trusted_script
from cuagent.cli.session import (
    Plan,
    ResumedRun,
    find_resumable,
    first_hooks,
    open_model,
    opened,
    resume_command,
)
from cuagent.cli.trust import resolve_settings

if TYPE_CHECKING:
    from cuagent.agent import Run, Seed, Stop
    from cuagent.config import Settings
    from cuagent.events import Emit
    from cuagent.task.task import Task

RUNS = Path(".cuagent", "runs")
WITHOUT_USER = ("expert", "replay", "scripted")
"""Kinds of models that take no instructions, so that they run without an interactive session."""
UNPRICED = object()
"""Marker for a model without the attribute `price`."""
LONG = 10.0
"""Seconds of a run after which the user is notified of its end."""


def optimize(
    task: options.TaskOrRun = None,
    inputs: options.Inputs = None,
    init: options.Init = None,
    module: options.ScriptModule = None,
    script_args: options.ScriptArgs = "",
    time_script: options.TimeScript = False,
    seed_kernel: options.SeedKernel = None,
    device: options.Device = None,
    precision: options.Precision = None,
    backward: options.Backward = False,
    model: options.Model = None,
    model_timeout: options.ModelTimeout = None,
    max_steps: options.MaxSteps = None,
    max_cost: options.MaxCost = None,
    max_time: options.MaxTime = None,
    max_device_time: options.MaxDeviceTime = None,
    approval: options.Approval = None,
    interactive: options.Interactive = None,
    message: options.Message = None,
    continue_newest: options.Continue = False,
    resume: options.Resume = None,
    fresh: options.Fresh = False,
    headless: options.Headless = False,
    run_dir: options.RunDir = RUNS,
    out: options.Out = None,
    output_format: options.OutputFormat = "text",
    trust: options.Trust = False,
) -> None:
    """Make a module faster, and prove it.

    Time the options without a kernel, write kernels, compile, verify, time, and keep the best. If
    no kernel is faster than the best free option, the result is that option.

    Exit code 0 if the run ended normally or at a limit (such as the model's context), with a
    gain or without; 1 if the model failed; 2 usage; 3 infrastructure; 130 interrupted.
    """
    _refuse_early(output_format, out, message)
    resumed = find_resumable(resume, run_dir, trust=trust) if continue_newest or resume else None
    seed = _seed(seed_kernel, resumed)
    _refuse_script_options(task, module, script_args, time_script=time_script)
    if task is None and resumed is None:
        raise Refused("Missing argument 'TASK'; see cuagent optimize --help")
    limits = {"max_steps": max_steps, "max_cost": max_cost, "max_time": max_time}
    limits |= {"max_device_time": max_device_time, "model_timeout": model_timeout}
    if resumed is not None:  # options of the command before
        approval = approval or resumed.approval
        limits = {k: resumed.limits.get(k) if v is None else v for k, v in limits.items()}
    flags = {"model": model, "device": device, "precision": precision, "approval": approval}
    settings = resolve_settings(flags | limits, trust)
    if module is not None:
        from cuagent.cli.capture import capture_for_run

        task = str(capture_for_run(str(task), module, script_args))
    opening = _task(task, inputs, init, settings, resumed, backward=backward)
    if time_script:
        require_trusted_script(opening, trust)
    chosen = open_model(_name(settings, resumed), opening, settings, trust=trust)
    plan = Plan(
        opening, chosen, settings, run_dir, resumed, message, output_format, headless, fresh, seed
    )
    _refuse_bare_source(plan, seed_kernel)
    run, stop = _run(plan, interactive)
    if run.result is not None:
        report_on_script(run, settings, time_script=time_script)
    if out is not None:  # it names the shapes that were judged
        _export(run, out)
    raise typer.Exit(_code(run, stop, run_dir))


def _run(plan: Plan, interactive: bool | None) -> tuple[Run, Stop]:
    """Run the plan, in an interactive session if the options and the terminal say so. Raises
    Refused."""
    is_interactive = _is_interactive(interactive, plan)
    _refuse_unpriced(plan)
    if is_interactive:
        from cuagent.cli.interactive import run_session

        return run_session(plan)
    _refuse_finished(plan)
    return _run_unattended(plan)


def _refuse_early(output_format: str, out: Path | None, message: str | None) -> None:
    """Raise Refused, before any work, for values of options that cannot be used."""
    if message is not None and not message.strip():
        raise Refused("--message is empty; say what to try next")
    if output_format not in options.FORMATS:
        formats = ", ".join(options.FORMATS)
        raise Refused(f"--output-format: no {output_format!r}; use {formats}")
    if out is not None:
        options.refuse_full(out)


def _refuse_script_options(
    task: str | None, module: str | None, script_args: str, *, time_script: bool
) -> None:
    """Raise Refused if options for a script are given without a script, or without `--module`."""
    if module is not None and task is None:
        raise Refused("--module needs your script as TASK")
    if module is None and script_args:
        raise Refused("--script-args needs --module, the module of the script to capture")
    from cuagent.task.load import in_folder

    is_captured = task is not None and in_folder(Path(task)) != Path(task)
    if time_script and module is None and not is_captured:
        raise Refused("--time-script needs --module, or a captured folder as TASK")


def _seed(path: Path | None, resumed: ResumedRun | None) -> Seed | None:
    """Return the user's own kernel (`--seed-kernel`); None without a path.

    Raises Refused and AttemptError.
    """
    if path is None:
        return None
    if resumed is not None:
        raise Refused("--seed-kernel is for a new run; this one has begun already")
    if not path.exists():
        raise Refused(f"{path}: no such file or folder; name your kernel")
    from cuagent.agent import read_seed

    return read_seed(path)


def _refuse_bare_source(plan: Plan, path: Path | None) -> None:
    """Raise Refused if the expert is given a kernel without a module that calls it."""
    seed = plan.seed
    if seed is not None and seed.attempt is None and plan.model.name.startswith("expert"):
        raise Refused(
            f"--seed-kernel {path}: the expert writes whole modules and cannot call a bare "
            "source file; give a folder with model_new.py, or use a language model"
        )


def _refuse_unpriced(plan: Plan) -> None:
    """Raise Refused if `--max-cost` was given for a model without a known price."""
    asked = plan.settings.origins["max_cost"] == "--max-cost"
    limits = {} if plan.resumed is None else plan.resumed.limits
    kept = limits.get("max_cost") == plan.settings.max_cost
    if asked and not kept and getattr(plan.model, "price", UNPRICED) is None:
        name = plan.model.name.partition(":")[2]
        raise Refused(
            f"--max-cost: no price is known for {plan.model.name}, so a limit cannot be enforced; "
            f'put [prices."{name}"] with input and output into ~/.config/cuagent/config.toml'
        )


def _refuse_finished(plan: Plan) -> None:
    """Raise Refused if a finished run is resumed without a message."""
    from cuagent.agent import FINISHED, Stop
    from cuagent.cli.progress import finished_text

    resumed = plan.resumed
    if resumed is not None and resumed.stop in FINISHED and plan.message is None:
        done = finished_text(Stop(resumed.stop), resumed.folder.id)
        raise Refused(f"{done}, or continue it with --message TEXT")


def _run_unattended(plan: Plan) -> tuple[Run, Stop]:
    """Run the plan to its end without user input; return the run and why it stopped."""
    from cuagent.agent import HOOKS, TOOLS, run_agent
    from cuagent.cli.approval import approved
    from cuagent.cli.progress import progress_lines, recall
    from cuagent.events import Notice

    with ExitStack() as stack:
        emit = _view(plan, stack)
        run = stack.enter_context(opened(plan, emit))
        if plan.resumed is not None:
            recall(run, emit)
            for line in progress_lines(run):
                emit(Notice(line))
        tools = approved(TOOLS, plan.settings.approval)
        stop = run_agent(run, plan.model, tools, (*first_hooks(plan), *HOOKS), emit)
    if plan.output_format == "json":
        from json import dumps

        print(dumps(_result(run, stop)))
    elif plan.output_format == "text":
        if plan.headless:
            from cuagent.agent.conclude import summarize
            from cuagent.ui.console import say

            say(summarize(run))
        _notify(run, stop, plan.settings)
    return run, stop


def _is_interactive(wanted: bool | None, plan: Plan) -> bool:
    """Return True if the run is interactive, by the option or by default.

    Raises Refused if the terminal does not permit what the option asks for.
    """
    piped = plan.headless or plan.output_format != "text"
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if wanted and (piped or not terminal):
        raise Refused("--interactive needs a terminal and --output-format text")
    is_interactive, asks = wanted, plan.settings.approval == "ask"
    if wanted is None:
        alone = plan.model.name.partition(":")[0] in WITHOUT_USER
        is_interactive = terminal and not piped and (asks or not alone)
    if asks and not is_interactive:
        raise Refused("--approval ask needs a terminal and --interactive; use auto or yolo")
    return bool(is_interactive)


def _task(
    task: str | None,
    inputs: str | None,
    init: str | None,
    settings: Settings,
    resumed: ResumedRun | None,
    *,
    backward: bool,
) -> Task:
    if task is not None:
        return options.open_task(task, inputs, init, settings, backward=backward)
    assert resumed is not None
    return resumed.task


def _name(settings: Settings, resumed: ResumedRun | None) -> str:
    """Return the model's name: the user's setting, else the model of the resumed run."""
    if resumed is not None and settings.origins["model"] == "default":
        return resumed.model
    return settings.model


def _view(plan: Plan, stack: ExitStack) -> Emit:
    if plan.output_format == "stream-json":
        from cuagent.ui.jsonl import JsonLines

        return JsonLines(sys.stdout)
    from cuagent.ui.terminal import Terminal

    to_stdout = plan.output_format == "text" and not plan.headless
    return stack.enter_context(Terminal(sys.stdout if to_stdout else sys.stderr))


def _notify(run: Run, stop: Stop, settings: Settings) -> None:
    from cuagent.ui.notify import notify

    if run.seconds >= LONG:
        text = f"cuagent: {run.task.name}: {stop}"
        if wrong := notify(text, sys.stderr, settings.notify, settings.notify_command):
            print_stderr(wrong)


def _result(run: Run, stop: Stop) -> dict[str, Any]:
    """Return the result of a run as JSON data."""
    from cuagent.agent.conclude import summarize
    from cuagent.judgement import result_of
    from cuagent.record import result

    best = run.result
    judgement = best.judgement if best else None
    return result(
        "optimize",
        {
            "run": run.folder.id,
            "folder": run.folder.path,
            "task": run.task.name,
            "device": run.task.device,
            "stop": stop,
            "result": result_of(judgement, run.ladder),
            "gain": judgement is not None and judgement.is_faster,
            "summary": summarize(run),
            "attempt": best.n if best else None,
            "best": judgement,
            "gain_parts": judgement.gain if judgement else None,
            "ladder": run.ladder,
            "steps": run.steps,
            "duration_s": round(run.seconds, 3),
            "stages": run.durations.to_json(),
            "tokens": run.usage,
            "cost_usd": run.cost,
            "unpriced_calls": run.unpriced_calls,
            "error": run.error or None,
        },
    )


def _export(run: Run, out: Path) -> None:
    from cuagent.agent.conclude import result_judgement
    from cuagent.cli.export import write_result

    attempts = {tried.attempt.digest: tried.attempt for tried in run.tried}
    judgement = result_judgement(run)
    try:
        print(
            write_result(run.task, judgement, run.ladder, attempts, out, (), run.folder.path),
            file=sys.stderr,
        )
    except Refused as refusal:
        print_stderr(str(refusal))


def _code(run: Run, stop: Stop, run_dir: Path) -> Exit:
    from cuagent.agent import Stop

    on = f"continue with: {resume_command(run, run_dir)}"
    match stop:
        case Stop.SUBMITTED | Stop.NO_GAIN | Stop.STALLED | Stop.LOOPING:
            return Exit.OK
        case Stop.INTERRUPTED:
            print_stderr(f"interrupted; see the attempts with: cuagent show {run.folder.id}; {on}")
            return Exit.INTERRUPTED
    print_stderr(f"{stop}{_context_note(run)}; {on}")
    match stop:
        case Stop.CONTEXT_FULL if not _answered(run):
            return Exit.NO
        case Stop.MODEL_FAILED:
            return Exit.NO
        case Stop.JUDGE_FAILED:
            return Exit.INFRASTRUCTURE
    return Exit.OK


def _context_note(run: Run) -> str:
    """Return a note for the end of the run if the model's context was full, else ""."""
    from cuagent.agent import Stop

    if run.stop is not Stop.CONTEXT_FULL:
        return ""
    if not _answered(run):
        return (
            ": the model's context does not hold the task and its instructions; use another model"
        )
    return ", even after compaction: the run ended early, and its results remain valid"


def _answered(run: Run) -> bool:
    """Return True if the model answered at least once in this run."""
    return run.usage.output > 0 or any(message.role == "assistant" for message in run.messages)
