"""Device lock that adds up the seconds for which a problem uses its device.

All benchmarks of one user on one machine share the lock of a GPU, so only one of them times on it
at a time.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cuagent.device_lock import DeviceLock, GiveWay


@dataclass
class Held:
    """Seconds for which one problem has held the lock of its device."""

    exclusive_s: float = 0.0
    """Seconds for which one problem had exclusive use of the device, for timing."""
    shared_s: float = 0.0
    """Seconds for which one problem shared the device: for certifying, opening and verifying."""


@dataclass(frozen=True)
class HeldLock(DeviceLock):
    """`DeviceLock` that adds the seconds of its use to `held`."""

    held: Held = field(default_factory=Held)

    @contextmanager
    def shared(self) -> Iterator[GiveWay]:
        """Hold the lock in shared mode, together with other processes; add the time to
        `held.shared_s`."""
        with super().shared() as give_way:
            began, waited = time.monotonic(), 0.0

            def counted() -> None:
                nonlocal waited
                asked = time.monotonic()
                give_way()
                waited += time.monotonic() - asked

            try:
                yield counted
            finally:
                self.held.shared_s += time.monotonic() - began - waited

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock in exclusive mode; add the time to `held.exclusive_s`."""
        with super().exclusive():
            began = time.monotonic()
            try:
                yield
            finally:
                self.held.exclusive_s += time.monotonic() - began


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
