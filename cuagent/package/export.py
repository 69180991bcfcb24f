"""Export an attempt as a self-contained folder: model, kernels, loader, check, measured figures.

The folder is both a Python package and an installable project, and its `model_new.py` can also be
imported by path. Its kernel runs for verified calls only (`guarded.py`). Not covered: attempts that
need packages other than torch.
Invariant: code in the folder imports cuagent only if the folder's copy of the loader is missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import cuagent.kernels
from cuagent.attempt import ENTRY, MODULE, Attempt
from cuagent.build.result import Build
from cuagent.package import check
from cuagent.package.check import INPUTS, REFERENCE
from cuagent.package.figures import Figures
from cuagent.package.folder import atomic_folder, package_name, write_files, write_project
from cuagent.package.guarded import FOLDER, Captured, guarded_files
from cuagent.package.inputs import inputs_text
from cuagent.package.names import quoted_name
from cuagent.package.readme import readme
from cuagent.package.vendor import LOADER, vendored
from cuagent.task.step import forward_task
from cuagent.task.task import Task

NOTICE = """`check.py` and, in `model_new_verified`, `_kernels` and every file of Python but
`model_new.py` and those in `imports` are part of cuagent, under the Apache License, Version 2.0
(https://www.apache.org/licenses/LICENSE-2.0). The rest was made for the owner of the module that it
replaces, and cuagent claims no right in it.
"""


def export(
    attempt: Attempt,
    task: Task,
    figures: Figures,
    out: Path,
    *,
    builds: Sequence[Build] = (),
    measured: date | None = None,
    captured: Captured | None = None,
) -> Path:
    """Write the package to `out` and return `out`.

    The package includes the compiled libraries of `builds`, each for one kind of machine.
    `captured` names the module of a user's script that the task was captured from.
    `measured` is the date in the README; None stands for today.
    Raises ExportError if `out` is not empty or if the verified calls are not recorded.
    """
    with atomic_folder(out) as folder:
        _write(attempt, task, figures, folder, builds, measured, captured)
    return out


def _write(
    attempt: Attempt,
    task: Task,
    figures: Figures,
    out: Path,
    builds: Sequence[Build],
    measured: date | None,
    captured: Captured | None,
) -> None:
    name = package_name(forward_task(task))
    files = guarded_files(attempt, task, figures.domain, REFERENCE, captured)
    text = readme(name, attempt, task, figures, measured, captured)
    task = forward_task(task)
    inside = out / FOLDER
    files[f"{FOLDER}/{MODULE}"], uses_loader = vendored(dict(attempt.files)[MODULE])
    write_files(files, out)
    if inputs := inputs_text(task):
        (out / INPUTS).write_text(inputs)
    if uses_loader:
        loader = Path(cuagent.kernels.__file__).parent
        shutil.copytree(loader, inside / LOADER, ignore=shutil.ignore_patterns("__pycache__"))
    (out / "NOTICE").write_text(NOTICE)
    (out / "__init__.py").write_text(
        f'"""{task.entry} of {quoted_name(task.path)}, made faster with custom kernels."""\n\n'
        f"from .{MODULE.removesuffix('.py')} import {ENTRY}, optimize_, restore_\n\n"
        f'__all__ = ["{ENTRY}", "optimize_", "restore_"]\n'
    )
    shutil.copy(check.__file__, out / "check.py")
    facts = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
    (out / "task.json").write_text(json.dumps(facts, indent=2) + "\n")
    write_project(name, out)
    (out / "README.md").write_text(text)
    for library in (library for build in builds for library in build.libraries):
        _prebuilt(library.path, (inside / library.source).parent)


def _prebuilt(library: Path, kernels: Path) -> None:
    # The cache folder is named <target>-<toolchain>; the loader looks in prebuilt/<target> next to
    # the source.
    folder = kernels / "prebuilt" / library.parent.name.rpartition("-")[0]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, folder)
