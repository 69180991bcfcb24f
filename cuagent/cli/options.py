"""Arguments and options that several commands share, with their help texts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli.exits import Refused
from cuagent.config import Settings

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.events import Emit
    from cuagent.task.task import Task
    from cuagent.timing import Effort


def _time(seconds: float) -> str:
    """Format a time setting in its shortest form: `1h`, `10m`, `90s`."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


TASK_HELP = (
    "A file with Model, get_inputs and get_init_inputs; path.py:ClassName; or a captured folder."
)
TaskSpec = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help=TASK_HELP,
    ),
]
Inputs = Annotated[
    str | None, typer.Option(metavar="SPEC", help='What forward takes: "f32[8,512], i64[8]".')
]
Init = Annotated[
    str | None, typer.Option(metavar="SPEC", help='What the constructor takes: "512, eps=1e-5".')
]
Device = Annotated[
    str | None,
    typer.Option(metavar="auto|cpu|cuda", help=f"Where it runs.  [default: {Settings.device}]"),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="match|fp32|tf32|bf16|fp16",
        help="match: your own torch settings in all arms; fp32: IEEE fp32 in all arms; "
        f"others: also admit that arithmetic.  [default: {Settings.precision}]",
    ),
]
Backward = Annotated[
    bool,
    typer.Option(
        "--backward", help="Judge a training step: outputs and gradients, forward and backward."
    ),
]
Timing = Annotated[
    str, typer.Option(metavar="none|quick|record", help="Also time it, if it is accepted.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Accept without asking: a run or evidence that was not made here, "
        "and settings of a project's file that need your consent.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="An ID or a part of one, a path, or `latest`.")
]

# of `optimize`
TaskOrRun = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help=TASK_HELP,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="expert, PROVIDER:MODEL, or auto: chosen by the API keys that are set.  "
        f"[default: {Settings.model}]",
    ),
]
ModelTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Ask the model again after so long without a byte from its server; keep-alive "
        f"bytes count.  [default: {_time(Settings.model_timeout)}]",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"Calls of the model.  [default: {Settings.max_steps}]"),
]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="USD", help=f"US dollars.  [default: {Settings.max_cost:g}]"),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Wall time: 90s, 30m, 1.5h.  [default: {_time(Settings.max_time)}]"
    ),
]
MaxDeviceTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time of judging, timing and profiling.  "
        f"[default: {_time(Settings.max_device_time)}]",
    ),
]
Approval = Annotated[
    str | None,
    typer.Option(
        metavar="ask|auto|yolo",
        help="Ask before: every command, commands outside a sandbox, none.  "
        f"[default: {Settings.approval}]",
    ),
]
Interactive = Annotated[
    bool | None,
    typer.Option(
        "--interactive/--no-interactive",
        "-i",
        help="Chat with the model; default on a terminal with a language model.",
    ),
]
Message = Annotated[
    str | None,
    typer.Option("--message", "-m", metavar="TEXT", help="First message to the model."),
]
ScriptModule = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="NAME",
        help="TASK is your own script: run it, capture this module and optimize it.",
    ),
]
ScriptArgs = Annotated[
    str, typer.Option(metavar="TEXT", help='The script\'s arguments: "--steps 20".')
]
SeedKernel = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Start from your own kernel: a folder with model_new.py, a file with ModelNew, or, "
        "with a language model, a source file.",
    ),
]
TimeScript = Annotated[
    bool,
    typer.Option(
        "--time-script",
        help="Of a captured module: run its script four times, without and with the result.",
    ),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Resume the newest run.")]
Resume = Annotated[
    str | None, typer.Option("--resume", "-r", metavar="RUN", help="Resume that run.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Time the baselines again; ignore the cache.")]
Headless = Annotated[
    bool, typer.Option("--print", "-p", help="Only the result on stdout, the rest on stderr.")
]
RunDir = Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders are.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Export the result there at the end.")
]
NARROW = 24
"""Smallest width in characters of wrapped text."""
FORMATS = ("text", "json", "stream-json")
OutputFormat = Annotated[
    str,
    typer.Option(
        metavar="|".join(FORMATS),
        help="text for people; json is one result on stdout, the rest on stderr; "
        "stream-json is one event a line.",
    ),
]


def open_task(
    spec: str,
    inputs: str | None,
    init: str | None,
    settings: Settings,
    *,
    backward: bool = False,
) -> Task:
    """Load the task that `spec` names, with these settings; with `backward` its training step.

    Raises TaskError, and Refused for a captured folder whose check failed.
    """
    from cuagent.capture.shapes import manifest_of
    from cuagent.task import load_task

    task = load_task(
        spec, inputs=inputs, init=init, device=settings.device, precision=settings.precision
    )
    if error := (manifest_of(task) or {}).get("error"):
        raise Refused(f"{spec}: {error}; capture the module again")
    if not backward:
        return task
    from cuagent.task.step import training_step

    return training_step(task)


def effort(text: str) -> Effort | None:
    """Convert a value of `--timing` to an effort; None for `none`. Raises Refused for other
    words."""
    from cuagent.timing import Effort

    if text == "none":
        return None
    if text not in ("quick", "record"):
        raise Refused(f"--timing: no {text!r}; use none, quick or record")
    return Effort(text)


def open_candidate(path: Path) -> Attempt:
    """Read the candidate's files at a path as a frozen attempt. Raises AttemptError and Refused."""
    from cuagent.attempt import freeze

    try:
        there = path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a null character
        there = False
    if not there:
        raise Refused(f"{path}: no such file or folder; name a candidate")
    return freeze(path)


def refuse_full(out: Path) -> None:
    """Raise Refused, before any work, if the output folder is not empty or cannot be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out}: already exists; name an empty or new folder")
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        raise Refused(f"{out}: {reason}; name a folder that you may write") from error
    finally:
        with suppress(OSError):  # a run that exports nothing leaves no folder
            for folder in new:
                folder.rmdir()


def refuse_nowhere(file: Path | None) -> None:
    """Raise Refused, before any work, if the output file cannot be written."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise Refused(f"{file}: cannot be written; name a file in an existing folder")


def fitted(lines: Iterable[str], indent: int = 2) -> Iterator[str]:
    """Yield the lines wrapped to the terminal's width, with continuations indented; unchanged in a
    pipe.

    An `indent` that would leave fewer than `NARROW` columns becomes two.
    """
    import shutil

    from cuagent.ui.text import wrap

    if not sys.stdout.isatty():
        yield from lines
        return
    width = shutil.get_terminal_size().columns
    indent = indent if width - indent >= NARROW else 2
    for line in lines:
        if len(line) <= width or "|" in line:  # a row of a table: cut to fit already
            yield line
            continue
        first, *_ = wrap(line, width)
        yield first
        rest = " ".join(line[len(first) :].split())
        yield from (" " * indent + piece for piece in wrap(rest, max(width - indent, 1)))


@contextmanager
def activity(text: str, *, silent: bool) -> Iterator[Emit]:
    """Yield an event sink that shows progress on stderr; with `silent` it shows nothing.

    A Ctrl-C that other code swallowed takes effect at the next event, or at the end.
    """
    from cuagent.cli.interrupts import interrupts_recorded, raise_if_interrupted
    from cuagent.events import Event, Phase, ignore
    from cuagent.ui.terminal import Terminal

    with interrupts_recorded() as interrupted, ExitStack() as stack:
        shown = ignore if silent else stack.enter_context(Terminal(sys.stderr))

        def emit(event: Event) -> None:
            raise_if_interrupted(interrupted)
            shown(event)

        emit(Phase(text))
        yield emit
        raise_if_interrupted(interrupted)
