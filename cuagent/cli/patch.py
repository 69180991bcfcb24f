"""`cuagent apply --to FILE` and `--undo FILE`: change one file of the user, and undo the change."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cuagent.cli.exits import Refused, print_stderr
from cuagent.cli.trust import can_ask

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.package import Captured
    from cuagent.task import Task


def patch_file(
    path: Path,
    task: Task,
    attempt: Attempt,
    judgement: Judgement,
    captured: Captured | None = None,
    *,
    yes: bool,
    force: bool,
) -> None:
    """Show the change of `path` as a diff, ask the user, then write it and the folder that it
    imports.

    Raises Refused, before anything is written.
    """
    from cuagent.attempt import MODULE
    from cuagent.package import ExportError
    from cuagent.package.guarded import FOLDER, guarded_files
    from cuagent.package.patch import MANIFEST, class_text, folder_name, manifest, patched
    from cuagent.package.vendor import loader_files
    from cuagent.record import write_file
    from cuagent.task.step import forward_task
    from cuagent.ui.console import say

    before, own = _text(path), forward_task(task)
    entry = own.entry if captured is None else captured.kind
    name = folder_name(path.stem, entry)
    try:
        if class_text(before, entry) != class_text(own.source, entry):
            raise ExportError(f"its class {entry} is not the one that was verified")
        in_package = (path.parent / "__init__.py").is_file()
        after = patched(before, entry, name, in_package=in_package)
        reference = f"{FOLDER}/reference.py"
        texts = guarded_files(attempt, task, judgement.domain, reference, captured)
    except ExportError as error:
        raise Refused(f"{path}: {error}; nothing was written") from error
    texts |= loader_files(FOLDER, texts[f"{FOLDER}/{MODULE}"])
    texts["__init__.py"] = "from .model_new import accelerate_\n\n__all__ = ['accelerate_']\n"
    files = {key: text.encode("utf-8", "backslashreplace") for key, text in texts.items()}
    folder = path.parent / name
    if folder.exists() and not (folder / MANIFEST).is_file() and not force:
        raise Refused(f"{folder}: exists, and cuagent did not write it; move it, or give --force")
    new = not folder.exists()
    say(_diff(before, after, path))
    say(f"new folder {folder} with {len(files)} files: the kernels and the original class")
    if not yes:
        if not can_ask():
            raise Refused("nothing was written; give --yes to write this change")
        if not typer.confirm("write this change?", err=True):
            raise Refused("nothing was written")
    try:
        for each, content in {**files, MANIFEST: manifest(files)}.items():
            folder.mkdir(exist_ok=True)
            write_file(folder, each, content)
        # The user's file is written last, so that it never imports an incomplete folder.
        write_file(path.parent, path.name, after.encode("utf-8"))
    except OSError as error:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise Refused(f"{path}: cannot be written ({error.strerror or error})") from error
    say(f"{entry} in {path} now runs the kernel; undo with: cuagent apply --undo {path}")


def undo(path: Path) -> None:
    """Remove the lines that `apply` added to a file, and the folders that these lines import.

    Raises Refused.
    """
    from cuagent.package.patch import MANIFEST, unchanged, unpatched
    from cuagent.record import write_file
    from cuagent.ui.console import say

    before = _text(path)
    after, folders = unpatched(before)
    if not folders:
        raise Refused(f"{path}: holds no change of cuagent apply")
    try:
        write_file(path.parent, path.name, after.encode("utf-8"))
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror or error})") from error
    say(f"{path}: as before")
    for folder in (path.parent / name for name in folders):
        if not (folder / MANIFEST).is_file():
            continue
        listed = (folder / MANIFEST).read_text(encoding="utf-8")
        files = [file for file in folder.rglob("*") if file.is_file() or file.is_symlink()]
        changed = [
            file
            for file in files
            if file.suffix != ".pyc"
            and file.name != MANIFEST
            and not unchanged(listed, file.relative_to(folder).as_posix(), file.read_bytes())
        ]
        if changed:
            print_stderr(f"{folder} stays, because {changed[0].name} was changed or added")
            continue
        shutil.rmtree(folder)
        say(f"{folder}: deleted")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Refused(f"{path}: cannot be read ({why})") from error


def _diff(before: str, after: str, path: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(path), f"{path} (with the kernel)", lineterm=""
    )
    return "\n".join(lines)
