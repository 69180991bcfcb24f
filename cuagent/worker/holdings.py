"""Measure the memory and files of a session's processes from outside these processes.

The kernel's limits apply to one process or one file at a time. This module also counts files that
were deleted but are still open, memory of memfd_create that is not mapped, buffers of sockets, and
the number of file names.

Not covered: if the referee is not root, a deleted file that is mapped but not open counts only by
its mapped part.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuagent.sandbox import resident
from cuagent.worker.folder import usage

DISK_BYTES = 2 << 30
"""Largest total size in bytes of a candidate's files; the kernel only limits each file's size."""
MAX_NAMES = 20_000
"""Largest number of files and folders in a candidate's folder. A candidate that compiles while it
runs creates some hundred."""
DELETED = " (deleted)"
SOCKETS = -1
"""Stands for sockets where a device number is expected. Their buffers are memory of the kernel."""
BUFFER_LIMIT = Path("/proc/sys/net/core/wmem_max")
File = tuple[int, int]
"""Device number and inode number, which identify a file."""


@dataclass(frozen=True)
class Holdings:
    """Resources of a session: bytes in memory, bytes on disk and number of files and folders."""

    memory: float
    disk: float
    names: float

    def excess(self, memory_bytes: int) -> str | None:
        """Return the first exceeded limit as a predicate, such as "wrote more than 2048 MiB of
        files"; None if all limits are kept."""
        if self.memory > memory_bytes:
            return (
                f"used more than {memory_bytes >> 20} MiB of memory; keep fewer or smaller "
                "temporary tensors"
            )
        if self.disk > DISK_BYTES:
            return f"wrote more than {DISK_BYTES >> 20} MiB of files"
        if self.names > MAX_NAMES:
            return f"made more than {MAX_NAMES:,} files"
        return None


def holdings(
    pid: int, process_tree: Collection[int], folder: Path, lent: Collection[File]
) -> Holdings:
    """Measure the memory, disk space and file names of the process group `pid` and its descendants
    `process_tree`. Files in `lent` do not count."""
    deleted, memory_device = _deleted({pid, *process_tree}, lent), _memory_device()
    in_memory = sum(n for (device, _), n in deleted.items() if device in (memory_device, SOCKETS))
    on_disk = sum(deleted.values()) - in_memory
    disk, names = usage(folder)
    return Holdings(resident(pid, process_tree) + in_memory, disk + on_disk, names)


def _deleted(process_tree: Iterable[int], lent: Collection[File]) -> dict[File, float]:
    """Return the size in bytes of each socket and each deleted but open file of these processes."""
    found: dict[File, float] = {}
    for pid in process_tree:
        try:
            for file, size in _open_files(pid):
                found[file] = size
            for file, size in _mapped_files(pid):
                found.setdefault(file, size)
        except PermissionError:
            if _runs(pid):  # it hides its files, so the limit applies
                found[0, pid] = math.inf
        except OSError:  # the process ended meanwhile
            continue
    return {file: size for file, size in found.items() if file not in lent}


def _open_files(pid: int) -> Iterator[tuple[File, float]]:
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(FileNotFoundError):  # the file was closed meanwhile
                status = Path(descriptor.path).stat()
                if stat.S_ISSOCK(status.st_mode):
                    yield (SOCKETS, status.st_ino), _largest_buffer()
                yield from _if_deleted(status)


def _mapped_files(pid: int) -> Iterator[tuple[File, float]]:
    lengths: dict[File, float] = {}
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        if not line.endswith(DELETED):
            continue
        span, _, _, device, inode, *_ = line.split(maxsplit=5)
        begin, end = (int(edge, 16) for edge in span.split("-"))
        try:
            yield from _if_deleted(Path(f"/proc/{pid}/map_files/{span}").stat())
        except PermissionError:  # only root may read map_files
            major, minor = (int(number, 16) for number in device.split(":"))
            file = os.makedev(major, minor), int(inode)
            lengths[file] = lengths.get(file, 0) + end - begin
        except FileNotFoundError:
            continue
    yield from lengths.items()


def _if_deleted(found: os.stat_result) -> Iterator[tuple[File, float]]:
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
        yield (found.st_dev, found.st_ino), found.st_blocks * 512


@cache
def _largest_buffer() -> int:
    """Return the largest size in bytes of a socket's buffer; the kernel doubles the requested
    size."""
    return 2 * int(BUFFER_LIMIT.read_text())


def _memory_device() -> int:
    """Return the device number of the file system on which memfd_create makes its files."""
    file = os.memfd_create("cuagent-device")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
