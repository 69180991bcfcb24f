"""Read a source file. Only regular files of limited size are read, so that no read blocks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST_FILE = 4 << 20
"""Size in bytes of the largest file that is read; source text is smaller."""


def read_source(path: Path) -> bytes:
    """Return the content of a file.

    Raises OSError, also for a device, a pipe, or a file of more than LARGEST_FILE bytes.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"larger than {LARGEST_FILE >> 20} MiB; move data to another file")
    return content
