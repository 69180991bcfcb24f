"""`cuagent capture`: record a module of a user's script as a task folder."""

from __future__ import annotations

import json as json_module
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit, Refused, print_stderr

if TYPE_CHECKING:
    from cuagent.capture.run import Order

CAPTURED = Path("captured")
SETTINGS = {"ignore_unknown_options": True}
"""click's settings for this command: unknown options are passed on to the user's script."""

Module = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The module to record, such as model.layers.0.mlp."),
]
Calls = Annotated[
    int, typer.Option(metavar="N", min=1, help="Calls of each shape whose inputs are recorded.")
]
QuotaMib = Annotated[
    int, typer.Option("--quota", metavar="MIB", min=1, help="Most that is copied, in MiB.")
]


def capture(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="Your own script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")
    ] = None,
    module: Module = None,
    list_modules: Annotated[
        bool, typer.Option("--list", help="Show the modules: shapes, calls, share of the time.")
    ] = False,
    calls: Calls = 20,
    quota: QuotaMib = 1024,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the script after that many calls.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder to write.  [default: captured/NAME]"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run your script and record one of its modules as a task.

    The script runs once, as you would run it; its options follow its name, after -- if cuagent
    has an option of the same name. --list shows first what a faster module could be worth.

    Exit code 0; 1 if the script failed, also where its calls until then are kept, or if the
    rebuilt module does not give the recorded result; 2 if nothing could be recorded.
    """
    refuse_script(script)
    if list_modules == (module is not None):
        raise Refused("give --module NAME, or --list to see the names")
    from cuagent.capture.run import Order

    order = Order(script, tuple(arguments or ()), module, calls, quota << 20, stop)
    if list_modules:
        raise typer.Exit(_list(order, json))
    folder = out or default_folder(str(module))
    manifest, checked = captured(order, folder)
    if json:
        print(json_module.dumps(manifest | {"folder": str(folder), "check": checked}, indent=2))
    else:
        for line in options.fitted(report(manifest, checked, folder)):
            print(line)
    failed = bool(manifest["failure"]) or "error" in checked
    if "error" in checked:
        print_stderr(f"{folder}: {checked['error']}; do not use it")
    raise typer.Exit(Exit.NO if failed else Exit.OK)


def captured(order: Order, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the script, write the captured folder and check it; return its manifest and the check's
    result.

    Raises Refused, CaptureRefused and ScriptFailed.
    """
    from dataclasses import replace

    from cuagent.capture.run import check_folder, require_capture, run_script
    from cuagent.record.origin import with_mac

    refuse_unwritable(folder)
    order = replace(order, out=folder)
    answer = run_script(order)
    require_capture(order, answer)
    checked = check_folder(folder, order.python)
    file = folder / "manifest.json"
    manifest: dict[str, Any] = json_module.loads(file.read_text())
    if "error" in checked:  # so that no later command uses the folder
        manifest["error"] = checked["error"]
    # the code shows a later `optimize --time-script` that this user named the script
    file.write_text(json_module.dumps(with_mac(manifest), indent=1) + "\n")
    return manifest, checked


def capture_for_run(script: str, module: str, arguments: str) -> Path:
    """Capture a module of a script for `optimize`; return the captured folder.

    `arguments` are those of the script, as on a command line. Raises Refused and the errors of
    `captured`.
    """
    from cuagent.capture.run import Order

    refuse_script(Path(script))
    try:
        given = tuple(shlex.split(arguments))
    except ValueError as error:
        raise Refused(f"--script-args: {error}") from error
    folder = default_folder(module)
    print_stderr(f"running {script} to capture {module}")
    manifest, checked = captured(Order(Path(script), given, module), folder)
    if "error" in checked:
        raise Refused(f"{folder}: {checked['error']}; see cuagent capture")
    for line in report(manifest, checked, folder)[:-1]:
        print_stderr(line)
    return folder


def report(manifest: dict[str, Any], checked: dict[str, Any], folder: Path) -> list[str]:
    """Return the report on a capture as lines: shapes, share of the time, notes and the next
    command."""
    from cuagent.capture.listing import gain_line, shape_lines
    from cuagent.capture.run import calls_with_gradients, notes

    shapes = len(manifest["shapes"])
    lines = [
        f"captured {manifest['module']} ({manifest['class']}): "
        f"{manifest['calls']} call{'s' * (manifest['calls'] != 1)} in "
        f"{shapes} shape{'s' * (shapes > 1)}",
        *shape_lines(manifest),
        gain_line(manifest["share"], trains=calls_with_gradients(manifest) > 0),
    ]
    if checked.get("difference") is not None:
        lines.append("the rebuilt module gives the recorded result")
    elif checked.get("note"):
        lines.append(checked["note"])
    lines += notes(manifest)
    if "error" not in checked:
        backward = " --backward" if calls_with_gradients(manifest) else ""
        lines.append(f"optimize it with: cuagent optimize {folder}{backward}")
    return lines


def refuse_script(script: Path) -> None:
    """Raise Refused if `script` is not a file."""
    if not script.is_file():
        what = "is a folder; give a script" if script.is_dir() else "no such file"
        raise Refused(f"{script}: {what}")


def default_folder(module: str) -> Path:
    """Make a new folder, named after the module; return its path.

    A command that captures at the same time gets another folder. If none can be made, the path is
    returned, and `refuse_unwritable` reports it.
    """
    name = re.sub(r"[^\w.]+", "_", module).strip(".") or "module"
    folder, number = CAPTURED / name, 2
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder, number = CAPTURED / f"{name}-{number}", number + 1
        except OSError:
            return folder
        else:
            return folder


def refuse_unwritable(folder: Path) -> None:
    """Raise Refused, before the script runs, if the output folder cannot be written."""
    options.refuse_full(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
        folder.rmdir()
    except OSError as error:
        raise Refused(f"{folder}: cannot be written: {os.strerror(error.errno or 0)}") from error


def _list(order: Order, json: bool) -> Exit:
    from cuagent.capture.listing import rows, table
    from cuagent.capture.run import in_processes, run_script

    answer = run_script(order)
    if not answer["modules"]:
        failed = f"; the script failed: {answer['failure']}" if answer["failure"] else ""
        raise Refused(f"{order.script}: no module was called{failed or in_processes(answer)}")
    if json:
        print(json_module.dumps(answer | {"modules": rows(answer)}, indent=2))
    else:
        from cuagent.ui.console import say

        for line in options.fitted(table(answer)):
            say(line)
    if answer["failure"]:
        print_stderr(f"the script failed: {answer['failure']}; the list holds the calls until then")
        return Exit.NO
    return Exit.OK
