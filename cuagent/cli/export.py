"""`cuagent export`: write the result of a run as a folder that works without cuagent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options
from cuagent.cli.apply import refuse_slower
from cuagent.cli.exits import Refused, print_stderr
from cuagent.cli.runs import RUNS, RunDir, attempt_in, attempt_name, chosen_attempt, read, readable
from cuagent.cli.script import captured_of
from cuagent.cli.trust import require_trusted_run

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder
    from cuagent.task.task import Task


class Form(StrEnum):
    """Kind of folder to export."""

    PACKAGE = "package"
    HF_KERNELS = "hf-kernels"


Out = Annotated[
    Path, typer.Option(metavar="DIR", help="The folder to write; it must be empty or new.")
]
ExportedAttempt = Annotated[
    int | None,
    typer.Option(metavar="N", help="Accepted attempt to export; default: the result."),
]
Architectures = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Compile ahead of time for these GPUs, such as sm_80,sm_90; others compile at "
        "first use.",
    ),
]
Format = Annotated[
    Form, typer.Option("--format", help="A package for pip, or a Hugging Face kernels folder.")
]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Export a kernel that was measured to be slower.")
]


def export(
    run: options.RunName,
    out: Out,
    attempt: ExportedAttempt = None,
    arch: Architectures = "",
    form: Format = Form.PACKAGE,
    force: Force = False,
    trust: options.Trust = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Write the result of a run as a package that pip installs.

    For an attempt it holds optimize_(model) and restore_(model), ModelNew, the kernels, a check and
    a README with the measured figures; the kernels run for calls that were verified, the original
    module for all others. If no kernel is faster than the best free option, it holds a function
    that applies that option to your module. Both work without cuagent.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out}: already exists; name an empty or new folder")
    folder, records = read(run, run_dir)
    require_trusted_run(folder, f"What it holds would be written to {out} to be run", trust)
    from cuagent.judgement import Result, result_of
    from cuagent.record import ladder_of
    from cuagent.record.revive import task_of
    from cuagent.ui.recorded import best_of

    with readable(folder):
        task = task_of(records)
        best = best_of(records) if attempt is None else chosen_attempt(records, attempt, folder.id)
        attempts = {} if best is None else {best.attempt: attempt_in(records, best.attempt)}
        found = ladder_of(records)
        is_kernel = attempt is not None or force or result_of(best, found) is Result.KERNEL
        name = attempt_name(records, best if is_kernel else None, folder.id)
    if attempt is not None and best is not None:
        refuse_slower(best, force=force)
    names = capabilities(arch)
    if names and task.device == "cpu":
        raise Refused(f"{folder.id}: its kernels run on the CPU; --arch is for CUDA")

    def write(to: Path) -> str:
        if best is not None and (attempt is not None or force):
            return _write_attempt(task, best, attempts[best.attempt], to, names, folder.path)
        return write_result(task, best, found, attempts, to, names, folder.path)

    _write_as(form, out, write)
    print_stderr(name)


def _write_as(form: Form, out: Path, write: Callable[[Path], str]) -> None:
    """Call `write` to write a package into `out`, convert the package to `form`, and print a line
    on it.

    `write` takes the folder and returns the line to print.
    """
    from tempfile import TemporaryDirectory

    from cuagent.package import hub_repository
    from cuagent.ui.console import say

    if form is Form.PACKAGE:
        say(write(out))
        return
    with TemporaryDirectory(prefix="cuagent-export-") as scratch:
        write(Path(scratch) / "package")
        hub_repository(Path(scratch) / "package", out)
    say(f"exported to {out} in the format of Hugging Face kernels")


def _write_attempt(
    task: Task,
    judged: Judgement,
    attempt: Attempt,
    out: Path,
    names: Sequence[str],
    run: Path | None,
) -> str:
    """Export an attempt as a package; return a line that names its folder."""
    from cuagent.package import export as write_package

    builds = built_for(attempt, names)
    captured = None if run is None else captured_of(task, run, judged.attempt)
    made = write_package(attempt, task, judged, out, builds=builds, captured=captured)
    if captured is not None and captured.call is None:
        return (
            f"exported to {made}; optimize_ will leave your module as it is, because its calls "
            "pass, return or change objects that a package cannot repeat: capture a module inside"
        )
    return f"exported to {made}"


def capabilities(names: str) -> list[str]:
    """Return the compute capabilities in a list such as `sm_80,sm_90`, in the loader's form: ["80",
    "90a"].

    Raises Refused.
    """
    found = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        match = re.fullmatch(r"sm_(\d{2,3})a?", name)
        if match is None:
            raise Refused(f"--arch {name}: not an architecture; name some as sm_80,sm_90")
        # As the loader does on such a device: the "a" variant may use all of its instructions.
        found.append(match[1] + ("a" if int(match[1]) >= 90 else ""))
    return list(dict.fromkeys(found))


def built_for(attempt: Attempt, names: Sequence[str]) -> list[Build]:
    """Compile an attempt for each of these compute capabilities. Raises Refused with the first
    error."""
    from cuagent.build import build
    from cuagent.task import Device

    builds = []
    for name in names:
        made = build(attempt, Device.CUDA, arch=name)
        if not made.ok:
            errors = [d for d in made.diagnostics if d.severity != "warning"]
            first = f"{errors[0].file}: {errors[0].message}" if errors else "unknown error"
            raise Refused(f"--arch sm_{name}: the kernels do not compile: {first}")
        builds.append(made)
    return builds


def write_result(
    task: Task,
    best: Judgement | None,
    found: Ladder | None,
    attempts: Mapping[str, Attempt],
    out: Path,
    names: Sequence[str] = (),
    run: Path | None = None,
) -> str:
    """Export the result of a run to `out`; return a line that names the result.

    The result is an attempt that is faster than the best rung; else the best rung; else a correct
    attempt, if no ladder was measured. `attempts` has the attempts by digest. Kernels are compiled
    in advance for the compute capabilities `names`. `run` is the run's folder. Raises Refused if
    there is no result.
    """
    from cuagent.judgement import Result, free_of, result_of
    from cuagent.package import export_rung
    from cuagent.timing import Standing
    from cuagent.ui.summary import full_name, undecided_rung

    result = result_of(best, found)
    if best is not None and (result is Result.KERNEL or found is None):
        refuse_slower(best, force=False)
        return _write_attempt(task, best, attempts[best.attempt], out, names, run)
    if result is Result.RUNG and found is not None and found.chosen is not None:
        rung = found.chosen
        captured = None if run is None else captured_of(task, run, "")
        made = export_rung(rung, found, task, out, free=free_of(best, found), captured=captured)
        return f"the best option without a kernel, {full_name(rung.name)}, was exported to {made}"
    if best is None and found is None:
        raise Refused(f"{out}: not made: no attempt was accepted, so there is nothing to export")
    other = "; to export an attempt anyway, use cuagent export --attempt N" if best else ""
    unsure = undecided_rung(found, best)
    if unsure is not None:
        raise Refused(
            f"{out}: not made: could not tell whether {full_name(unsure.name)} beats your module; "
            f"time it again with --fresh when the machine is quiet{other}"
        )
    if best is not None and best.standing is Standing.INCONCLUSIVE:
        raise Refused(
            f"{out}: not made: could not tell whether the kernel beats your module{other}"
        )
    raise Refused(f"{out}: not made: nothing beats your module{other}")
