"""`cuagent apply`: write the best attempt into the user's tree. No other command writes there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options, patch
from cuagent.cli.exits import Refused, print_stderr
from cuagent.cli.runs import RUNS, RunDir, attempt_in, attempt_name, chosen_attempt, read, readable
from cuagent.cli.script import captured_of
from cuagent.cli.trust import require_trusted_run

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.record import RunFolder
    from cuagent.task.task import Task


Place = Annotated[
    Path | None,
    typer.Option(
        metavar="PLACE",
        help="A folder, default: that of the task's module; or a file with the class, which "
        "is changed after its diff was shown.",
    ),
]
Undo = Annotated[
    Path | None,
    typer.Option("--undo", metavar="FILE", help="Take the change of --to FILE out again."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Change the file without a question.")]
AppliedAttempt = Annotated[
    int | None, typer.Option(metavar="N", help="Accepted attempt to apply; default: the best.")
]
Force = Annotated[
    bool,
    typer.Option("--force", "-f", help="Replace files that differ; install a slower kernel."),
]


def apply(
    run: options.RunName = "latest",
    to: Place = None,
    undo: Undo = None,
    yes: Yes = False,
    attempt: AppliedAttempt = None,
    force: Force = False,
    trust: options.Trust = False,
    run_dir: RunDir = RUNS,
) -> None:
    """Write the best attempt next to your module.

    It writes model_new.py and the folder model_new_verified. The kernel runs for calls that were
    verified, your original module for all others. Your own files stay unchanged; a file of the same
    name that differs is replaced only with --force. With --to FILE it adds three lines to that file
    instead, so that your class runs the kernel; --undo FILE takes them out. For a package without
    cuagent, use export.
    """
    if undo is not None:
        patch.undo(undo)
        return
    from cuagent.record.revive import task_of

    folder, records = read(run, run_dir)
    made_here = require_trusted_run(folder, "Its kernels would be put into your tree", trust)
    with readable(folder):
        judgement = _chosen(records, attempt, folder.id)
        task = task_of(records)
        chosen = attempt_in(records, judgement.attempt)
        name = attempt_name(records, judgement, folder.id)
    refuse_slower(judgement, force=force)
    if to is not None and (to.is_file() or to.suffix == ".py"):
        print_stderr(name)
        captured = captured_of(task, folder.path, judgement.attempt)
        patch.patch_file(to, task, chosen, judgement, captured, yes=yes, force=force)
        return
    if to is None and not made_here:
        _refuse_elsewhere(task.path.parent, folder)
    place = (task.path.parent if to is None else to).resolve()
    _install(_guarded(chosen, task, judgement, folder.id), place, folder.id, force=force)
    print_stderr(name)
    if why := slower(judgement):
        print_stderr(f"note: {why}")
    elif not judgement.beats_best_rung:
        rung = judgement.gain.rung if judgement.gain is not None else "eager"
        print_stderr(f"note: the kernel was not measured to be surely faster than {rung}")
    print("use it with: from model_new import ModelNew")


def _guarded(attempt: Attempt, task: Task, judgement: Judgement, run: str) -> dict[str, str]:
    """Return the files to write, path to text. They use the kernel for verified calls only.

    Raises Refused.
    """
    from cuagent.package import ExportError
    from cuagent.package.guarded import FOLDER, guarded_files

    try:
        return guarded_files(attempt, task, judgement.domain, f"{FOLDER}/reference.py")
    except ExportError as error:
        raise Refused(f"{run}: {error}") from error


def _install(files: Mapping[str, str], place: Path, run: str, *, force: bool) -> None:
    """Write the files into the folder `place` and print their names.

    Raises Refused if a file exists and the user does not agree.
    """
    from cuagent.config import resolve
    from cuagent.ui.console import say

    differing = [name for name, text in files.items() if _differs(place, name, text)]
    if differing and not force:
        raise Refused(
            f"{place}: {', '.join(differing)} would be replaced; read the change with "
            f"cuagent show {run}, then give --force, or --to DIR"
        )
    if resolve().approval == "ask" and not _agreed(files, place):
        raise Refused("nothing was written")
    _put(files, place)
    folders = Counter(name.split("/")[0] for name in files if "/" in name)
    for name in (name for name in files if "/" not in name):
        say(f"wrote {place / name}")
    for folder, count in folders.items():
        say(f"wrote {place / folder}/ ({count} files)")


def refuse_slower(judgement: Judgement, *, force: bool) -> None:
    """Raise Refused, unless `force`, if eager or another baseline is surely faster than the
    kernel."""
    if not force and (why := slower(judgement)):
        raise Refused(f"{why}, so nothing was written; to write it anyway, give --force")


def slower(judgement: Judgement) -> str:
    """Return a line that names a baseline that is surely faster than the kernel; "" if there is
    none.

    A rung that is not surely faster than eager counts too, if the kernel was timed against it.
    """
    from cuagent.timing import Standing
    from cuagent.ui.table import baseline_name

    ratios = judgement.timing.ratios if judgement.timing is not None else {}
    others = (name for name, r in ratios.items() if r.standing is Standing.SLOWER)
    name = judgement.slower_than or next(others, "")
    return f"the kernel was measured to be slower than {baseline_name(name, 40)}" if name else ""


def _refuse_elsewhere(place: Path, folder: RunFolder) -> None:
    """Raise Refused if a log of unknown origin names a folder outside of the project."""
    holder = folder.path.parents[1]
    project = holder.parent if holder.name == ".cuagent" else Path.cwd()
    if not place.resolve().is_relative_to(project):
        raise Refused(
            f"{folder.id}: the run names a module in {place}, outside of {project}; "
            "name the target folder with --to DIR"
        )


def _chosen(records: list[dict[str, Any]], number: int | None, run: str) -> Judgement:
    from cuagent.ui.recorded import best_of

    if number is None:
        best = best_of(records)
        if best is None:
            raise Refused(
                f"{run}: no attempt was accepted, so there is nothing to apply; "
                "export the best setting "
                f"without a kernel, if there is one, with: cuagent export {run} --out DIR"
            )
        return best
    return chosen_attempt(records, number, run)


def _differs(place: Path, name: str, text: str) -> bool:
    from cuagent.record import read_file

    try:
        wanted = _bytes(text)
        return read_file(place, name, len(wanted)) != wanted
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _agreed(files: Mapping[str, str], place: Path) -> bool:
    print_stderr(f"{', '.join(files)} will be written to {place}")
    return typer.confirm("continue?", err=True)


def _put(files: Mapping[str, str], place: Path) -> None:
    """Write each file atomically and not through links; model_new.py, which users import, is
    last."""
    from cuagent.record import write_file

    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in reversed(list(files.items())):
            write_file(place, name, _bytes(text))
    except OSError as error:
        raise Refused(f"{place}: cannot be written ({error.strerror or error})") from error


def _bytes(text: str) -> bytes:
    """Encode text from a log as UTF-8; lone surrogates, as in a forged log, become escapes."""
    return text.encode("utf-8", "backslashreplace")
