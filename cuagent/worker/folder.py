"""Folders that untrusted code has filled, nested as deep as it liked: how large, and how to go.

Python's own walks recurse once for each level, and a thousand levels end them.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
from pathlib import Path

LIBRARIES = "libraries"
"""Where in its folder a candidate finds what was compiled."""


def usage(folder: Path) -> tuple[float, float]:
    """Bytes of the files below it, and how many files and folders there are.

    Both are infinite where a name is too long to be asked about. What goes away meanwhile counts as
    nothing.
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
    """As far as that is possible; no error if it is not."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)
