"""What exported folders have in common: a name, a project file; each is there whole or not."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cuagent.package.check import INPUTS, REFERENCE
from cuagent.package.inputs import inputs_text
from cuagent.task.task import Task


class ExportError(Exception):
    """The folder cannot be written as asked. One line."""


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A folder to write into, moved to `out` at the end: half a package is never found there.

    Raises ExportError where `out` already holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: exists and is not empty; name a new folder with --out")
    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield partial
        partial.chmod(0o755)
        partial.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def package_name(task: Task) -> str:
    """A Python identifier and a distribution's name: `rms_norm_fast`."""
    slug = re.sub(r"\W+", "_", task.name.lower()).strip("_") or "model"
    return f"{'m_' if slug[0].isdigit() else ''}{slug}_fast"


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write texts to paths below `folder`."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def write_original(task: Task, folder: Path) -> None:
    """What `check.py` compares with: the user's file, and the inputs that came from elsewhere."""
    (folder / REFERENCE).write_text(task.source)
    if text := inputs_text(task):
        (folder / INPUTS).write_text(text)


def pyproject(name: str, inner: Sequence[str] = ()) -> str:
    """Of a package that lies beside its project file, with packages inside."""
    packages = [name, *(f"{name}.{package}" for package in inner)]
    places = {p: p.removeprefix(name).lstrip(".").replace(".", "/") or "." for p in packages}
    folders = ", ".join(f'"{package}" = "{place}"' for package, place in places.items())
    data = "".join(
        f'"{package}" = ["kernels/**/*", "imports/**/*", "*.json"]\n' for package in packages[1:2]
    )
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
{name} = ["README.md", "NOTICE", "task.json"]
{data}"""
