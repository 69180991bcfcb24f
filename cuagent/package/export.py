"""An attempt becomes a folder that stands alone: model, kernels, loader, check, measured figures.

The folder is a Python package and an installable project at once, and `model_new.py` in it can be
imported by path as well. Not covered: attempts that need other packages than
torch.
Invariant: nothing in the folder imports cuagent unless the loader's copy is missing beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from datetime import date
from pathlib import Path
from typing import Protocol

import cuagent.kernels
from cuagent.attempt import ENTRY, MODULE, Attempt
from cuagent.build.result import Build
from cuagent.measure.timing import Timing
from cuagent.package import check
from cuagent.package.readme import readme
from cuagent.package.vendor import LOADER, vendored
from cuagent.score import Score
from cuagent.task.task import Task
from cuagent.verify.verdict import Verdict


class ExportError(Exception):
    """The folder cannot be written as asked. One line."""


class Figures(Protocol):
    """What was measured, as a judgement holds it; whatever is None is said to be unmeasured."""

    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def timing(self) -> Timing | None: ...
    @property
    def score(self) -> Score | None: ...


NOTICE = """The folder `_kernels` is part of cuagent, under the Apache License, Version 2.0
(https://www.apache.org/licenses/LICENSE-2.0). `model_new.py` and `kernels/` were made for
the owner of the module that they replace, and cuagent claims no right in them.
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
    Raises ExportError where `out` already holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: exists and is not empty; name a new folder with --out")
    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    # beside its place and then moved there, so that no half of a package is ever found
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        _write(attempt, task, figures, partial, build, measured)
        partial.chmod(0o755)
        partial.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
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
    attempt.write(out)
    text, uses_loader = vendored(dict(attempt.files)[MODULE])
    (out / MODULE).write_text(text)
    if uses_loader:
        loader = Path(cuagent.kernels.__file__).parent
        shutil.copytree(loader, out / LOADER, ignore=shutil.ignore_patterns("__pycache__"))
        (out / "NOTICE").write_text(NOTICE)
    (out / "__init__.py").write_text(
        f'"""{task.entry} of {task.path.name}, made faster with kernels of its own."""\n\n'
        f'from .{MODULE.removesuffix(".py")} import {ENTRY}\n\n__all__ = ["{ENTRY}"]\n'
    )
    shutil.copy(check.__file__, out / "check.py")
    about = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
    (out / "task.json").write_text(json.dumps(about, indent=2) + "\n")
    if task.inputs is None:
        (out / "reference.py").write_text(task.source)
    (out / "pyproject.toml").write_text(_pyproject(name, uses_loader))
    (out / "README.md").write_text(
        readme(name, attempt, task, figures.verdict, figures.timing, figures.score, measured)
    )
    for library in build.libraries if build else ():
        _prebuilt(library.path, (out / library.source).parent)


def package_name(task: Task) -> str:
    """A Python identifier and a distribution's name: `rms_norm_fast`."""
    slug = re.sub(r"\W+", "_", task.name.lower()).strip("_") or "model"
    return f"{'m_' if slug[0].isdigit() else ''}{slug}_fast"


def _prebuilt(library: Path, kernels: Path) -> None:
    # The cache folder is named target-toolchain; the loader looks beside the source by target.
    folder = kernels / "prebuilt" / library.parent.name.rpartition("-")[0]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, folder)


def _pyproject(name: str, uses_loader: bool) -> str:
    packages = [name, f"{name}.{LOADER}"] if uses_loader else [name]
    folders = ", ".join(f'"{p}" = "{p.removeprefix(name).lstrip(".") or "."}"' for p in packages)
    return f"""[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "{name.replace("_", "-")}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["torch"]

[tool.setuptools]
packages = {json.dumps(packages)}
package-dir = {{ {folders} }}

[tool.setuptools.package-data]
{name} = ["kernels/**/*", "README.md", "NOTICE", "task.json"]
"""
