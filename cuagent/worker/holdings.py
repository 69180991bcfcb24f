"""What a session's processes hold of the machine, as the referee sees it from outside.

Limits of the kernel count one process or one file at a time. What they do not count is counted
here: files that have no name any more, memory of memfd_create that is mapped nowhere, and names.
Not covered: where the referee is not root, a nameless file that is mapped and held by no descriptor
counts by what of it is mapped.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuagent.sandbox import resident
from cuagent.worker.folder import usage

DISK_BYTES = 2 << 30
"""Of files in its folder, whose size alone is limited one by one."""
MOST_NAMES = 20_000
"""Files and folders in its folder. A candidate that compiles while it runs makes some hundred."""
DELETED = " (deleted)"
File = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True)
class Holdings:
    """Bytes in memory and on the disk, and how many names."""

    memory: float
    disk: float
    names: float

    def excess(self, memory_bytes: int) -> str | None:
        """What there is too much of, as a sentence without its subject; None if nothing."""
        if self.memory > memory_bytes:
            return f"used more than {memory_bytes >> 20} MiB of memory"
        if self.disk > DISK_BYTES:
            return f"wrote more than {DISK_BYTES >> 20} MiB of files"
        if self.names > MOST_NAMES:
            return f"made more than {MOST_NAMES:,} files"
        return None


def holdings(pid: int, family: Collection[int], folder: Path, lent: Collection[File]) -> Holdings:
    """What the group `pid` and all that came of it (`family`) hold, without what they were lent."""
    nameless, memory_device = _nameless({pid, *family}, lent), _memory_device()
    in_memory = sum(size for (device, _), size in nameless.items() if device == memory_device)
    on_disk = sum(size for (device, _), size in nameless.items() if device != memory_device)
    disk, names = usage(folder)
    return Holdings(resident(pid, family) + in_memory, disk + on_disk, names)


def _nameless(family: Iterable[int], lent: Collection[File]) -> dict[File, float]:
    """Bytes of every file without a name that these processes hold."""
    found: dict[File, float] = {}
    for pid in family:
        try:
            for file, size in _opened(pid):
                found[file] = size
            for file, size in _mapped(pid):
                found.setdefault(file, size)
        except PermissionError:
            if _runs(pid):  # it hides what it holds
                found[0, pid] = math.inf
        except OSError:  # it ended meanwhile
            continue
    return {file: size for file, size in found.items() if file not in lent}


def _opened(pid: int) -> Iterator[tuple[File, float]]:
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(FileNotFoundError):  # it was closed meanwhile
                yield from _if_nameless(Path(descriptor.path).stat())


def _mapped(pid: int) -> Iterator[tuple[File, float]]:
    lengths: dict[File, float] = {}
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        if not line.endswith(DELETED):
            continue
        span, _, _, device, inode, *_ = line.split(maxsplit=5)
        begin, end = (int(edge, 16) for edge in span.split("-"))
        try:
            yield from _if_nameless(Path(f"/proc/{pid}/map_files/{span}").stat())
        except PermissionError:  # for root alone
            major, minor = (int(number, 16) for number in device.split(":"))
            file = os.makedev(major, minor), int(inode)
            lengths[file] = lengths.get(file, 0) + end - begin
        except FileNotFoundError:
            continue
    yield from lengths.items()


def _if_nameless(found: os.stat_result) -> Iterator[tuple[File, float]]:
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
        yield (found.st_dev, found.st_ino), found.st_blocks * 512


def _memory_device() -> int:
    """The device of files that memfd_create makes."""
    file = os.memfd_create("cuagent-device")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
