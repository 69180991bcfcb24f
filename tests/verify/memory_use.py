"""Measure the peak memory of this process, its descendants and their arenas."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

EVERY_S = 0.02
"""Seconds between two samples. Each stage of a task of some MiB lasts longer."""


class PeakMemory(threading.Thread):
    """Thread that samples the memory of all processes inside its context; `bytes` is the peak.

    A process is counted with its anonymous memory beyond that at rest, which excludes libraries
    that it imported or shares with its parent. The memory at rest is the first quintile of its
    samples: smaller samples are of a process that starts or ends. Arenas are counted once.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._samples: list[tuple[dict[int, int], int]] = []

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            held = {pid: _anonymous(pid) for pid in _tree(os.getpid())}
            self._samples.append((held, _arenas(os.getpid())))

    @property
    def bytes(self) -> int:
        """Largest sum of memory in one sample, in bytes."""
        of_each: dict[int, list[int]] = defaultdict(list)
        for held, _ in self._samples:
            for pid, count in held.items():
                of_each[pid].append(count)
        rest = {pid: sorted(counts)[len(counts) // 5] for pid, counts in of_each.items()}
        return max(
            sum(max(0, count - rest[pid]) for pid, count in held.items()) + arenas
            for held, arenas in self._samples
        )

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
    """Return the bytes of this process's arenas that are in memory. An arena has two descriptors,
    because Python's mmap duplicates its descriptor."""
    held: dict[int, int] = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "memfd:cuagent" in str(descriptor.readlink()):
                file = descriptor.stat()
                held[file.st_ino] = file.st_blocks * 512
    return sum(held.values())
