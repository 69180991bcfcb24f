"""Files and folders that another process, or a later run, finds whole or not at all.

For: what is read while seeds still train, and what says by being there that a stage is done.
Not covered: checkpoints, which many processes write (`checkpoint.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuagent.training.segments import RecordError


def write_atomic(path: Path, text: str) -> None:
    """Replace the file in one step."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Where to write what then takes the folder's name, and the place of what had it."""
    partial, gone = (folder.with_name(folder.name + end) for end in (".partial", ".gone"))
    for left in (partial, gone):
        shutil.rmtree(left, ignore_errors=True)
    yield partial
    if folder.exists():
        folder.rename(gone)
    partial.rename(folder)
    shutil.rmtree(gone, ignore_errors=True)


def read_lines(path: Path) -> list[Any]:
    """The JSON values in a log that only grows. Raises RecordError with file and line.

    A last line without an end is what a killed writer left: no part of the log.
    """
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise RecordError(f"{path}:{number}: not JSON ({error})") from error
    return found
