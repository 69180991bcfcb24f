"""Measure and remove folders that untrusted code has filled, even if they are nested thousands
deep.

Python's own functions recurse once per level and fail at about a thousand levels.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
from pathlib import Path

LIBRARIES = "libraries"
"""Subfolder of a candidate's folder for the libraries that were compiled from its kernels."""


def usage(folder: Path) -> tuple[float, float]:
    """Return the bytes of all files below `folder` and the number of files and folders.

    Both are infinite if a path is too long to be read. Entries that vanish meanwhile count as zero.
    """
    total, names, waiting = 0, 0, [str(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except FileNotFoundError:
            continue
        except OSError:
            return math.inf, math.inf
        names += len(entries)
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total, names


def remove(folder: Path) -> None:
    """Remove a folder with its content as far as possible; ignore errors."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)
