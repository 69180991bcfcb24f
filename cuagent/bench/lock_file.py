"""Find the lock file of a GPU. All benchmarks of one user on one machine share it, so only one of
them times on the GPU at a time."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def lock_file(gpu: str) -> Path:
    """Return the path of a GPU's lock file, which all processes of the user share.

    `gpu`: name of the GPU as in CUDA_VISIBLE_DEVICES.
    """
    folder = Path(tempfile.gettempdir()) / f"cuagent-bench-{os.getuid()}"
    with suppress(FileExistsError):  # it may also be a link
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder}: is a link or belongs to another user; remove it")
    return folder / f"gpu-{gpu.replace('/', '_')}.lock"
