"""Measure the memory that this process, its descendants and their arenas hold at most."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

EVERY_S = 0.02
"""Seconds between two samples. A stage of a task of some MiB lasts longer."""


class PeakMemory(threading.Thread):
    """Samples anonymous memory of all processes, and arenas once. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        samples = 0
        while not self._ended.wait(EVERY_S):
            if samples % 10 == 0:
                pids = _tree(os.getpid())
            samples += 1
            self.bytes = max(self.bytes, sum(map(_anonymous, pids)) + _arenas(os.getpid()))

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [root]
    while left:
        found.append(pid := left.pop())
        left += children.get(pid, [])
    return found


def _anonymous(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def _arenas(pid: int) -> int:
    """Return the bytes of this process's arenas that are in memory."""
    held = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "memfd:cuagent" in str(descriptor.readlink()):
                held += descriptor.stat().st_blocks * 512
    return held
