"""Write files and folders atomically: readers see the complete old or the complete new version.

Used for files that other processes read during training, and for folders whose existence marks a
stage as finished.
Not covered: checkpoints, which several processes write (`checkpoint.py`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuagent.training.data.segments import RecordError


def write_atomic(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: a reader sees the complete old or the complete new
    file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder, which the caller creates and fills. At the end of the
    context it replaces `folder`."""
    partial, gone = (folder.with_name(folder.name + end) for end in (".partial", ".gone"))
    for left in (partial, gone):
        shutil.rmtree(left, ignore_errors=True)
    yield partial
    if folder.exists():
        folder.rename(gone)
    partial.rename(folder)
    shutil.rmtree(gone, ignore_errors=True)


def read_lines(path: Path) -> list[Any]:
    """Return the parsed JSON value of each line of an append-only log. Raises RecordError with file
    and line.

    A last line without a newline is ignored: a killed process left it.
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


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a hash (16 hex digits) of the concatenated `parts`.

    The manifest stores this hash in place of long data, such as the episodes of a data set.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
