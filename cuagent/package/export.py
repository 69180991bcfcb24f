"""An attempt becomes a folder that stands alone: model, kernels, loader, check, measured figures.

The folder is a Python package and an installable project at once, and `model_new.py` in it can be
imported by path as well. Its kernel runs for verified calls only (`guarded.py`). Not covered:
attempts that need other packages than torch.
Invariant: nothing in the folder imports cuagent unless the loader's copy is missing beside it.
"""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Protocol

import cuagent.kernels
from cuagent.attempt import ENTRY, MODULE, Attempt
from cuagent.build.result import Build
from cuagent.package import check
from cuagent.package.check import INPUTS, REFERENCE
from cuagent.package.folder import made_whole, package_name, pyproject, write_files
from cuagent.package.guarded import FOLDER, guarded_files
from cuagent.package.inputs import inputs_text
from cuagent.package.readme import readme
from cuagent.package.vendor import LOADER, vendored
from cuagent.score import Score
from cuagent.task.task import Task
from cuagent.timing import Timing
from cuagent.verdict import Verdict
from cuagent.verify.domain import Domain


class Figures(Protocol):
    """What was measured, as a judgement holds it; whatever is None is said to be unmeasured."""

    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def timing(self) -> Timing | None: ...
    @property
    def score(self) -> Score | None: ...
    @property
    def domain(self) -> Domain | None: ...


NOTICE = """`check.py` and, in `model_new_verified`, `_kernels`, `guard.py` and `forms.py` are part
of cuagent, under the Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0). The
rest was made for the owner of the module that it replaces, and cuagent claims no right in it.
"""


def export(
    attempt: Attempt,
    task: Task,
    figures: Figures,
    out: Path,
    *,
    build: Build | None = None,
    measured: date | None = None,
) -> Path:
    """Write the package to `out` and return it.

    With `build`, its libraries go along, for machines of this kind.
    Raises ExportError where `out` already holds something, and where it is not recorded which
    calls were verified.
    """
    with made_whole(out) as folder:
        _write(attempt, task, figures, folder, build, measured)
    return out


def _write(
    attempt: Attempt,
    task: Task,
    figures: Figures,
    out: Path,
    build: Build | None,
    measured: date | None,
) -> None:
    name = package_name(task)
    files = guarded_files(attempt, task, figures.domain, REFERENCE)
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
        f'"""{task.entry} of {task.path.name}, made faster with kernels of its own."""\n\n'
        f'from .{MODULE.removesuffix(".py")} import {ENTRY}\n\n__all__ = ["{ENTRY}"]\n'
    )
    shutil.copy(check.__file__, out / "check.py")
    about = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
    (out / "task.json").write_text(json.dumps(about, indent=2) + "\n")
    inner = [FOLDER, *([f"{FOLDER}.{LOADER}"] if uses_loader else [])]
    (out / "pyproject.toml").write_text(pyproject(name, inner))
    (out / "README.md").write_text(readme(name, attempt, task, figures, measured))
    for library in build.libraries if build else ():
        _prebuilt(library.path, (inside / library.source).parent)


def _prebuilt(library: Path, kernels: Path) -> None:
    # The cache folder is named target-toolchain; the loader looks beside the source by target.
    folder = kernels / "prebuilt" / library.parent.name.rpartition("-")[0]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, folder)
