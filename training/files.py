"""Files and folders that another process, or a later run, finds whole or not at all.

For: what is read while seeds still train, and what says by being there that a stage is done.
Not covered: checkpoints, which many processes write (`checkpoint.py`); logs that only grow.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace the file in one step."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Where to write what then takes the folder's name."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    partial.rename(folder)
