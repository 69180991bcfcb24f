"""Write exported folders atomically, with the files that all exports have."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cuagent.package import cuagent_build
from cuagent.package.check import INPUTS, REFERENCE
from cuagent.package.inputs import inputs_text
from cuagent.task.task import Task


class ExportError(Exception):
    """The package cannot be exported. The message is one line."""


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into, and move it to `out` if the body succeeds.

    `out` never holds an incomplete package. Raises ExportError if `out` is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists and is not empty; name a new folder with --out")
    target = out.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ExportError(f"{out}: cannot be written ({error.strerror or error})") from error
    try:
        yield partial
        partial.chmod(0o755)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def package_name(task: Task) -> str:
    """Return the name of the exported package, a Python identifier such as `rms_norm_fast`."""
    slug = re.sub(r"[^a-z0-9_]+", "_", task.name.lower()).strip("_") or "model"
    return f"{'m_' if slug[0].isdigit() else ''}{slug}_fast"


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write texts to paths below `folder`."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def write_original(task: Task, folder: Path) -> None:
    """Write the files that `check.py` reads: the user's file, and `inputs.py` if the command line
    gave inputs or constructor arguments."""
    (folder / REFERENCE).write_text(task.source)
    if text := inputs_text(task):
        (folder / INPUTS).write_text(text)


def write_project(name: str, folder: Path) -> None:
    """Write pyproject.toml and the build backend, which needs no network and no setuptools."""
    (folder / "pyproject.toml").write_text(pyproject(name))
    shutil.copy(cuagent_build.__file__, folder)


def pyproject(name: str) -> str:
    """Return the text of pyproject.toml for the package in its folder."""
    return f"""[build-system]
requires = []
build-backend = "{cuagent_build.__name__.rpartition(".")[2]}"
backend-path = ["."]

[project]
name = "{name.replace("_", "-")}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["torch>=2.6"]
"""
