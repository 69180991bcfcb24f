"""Compute the memory limit of an untrusted process, and measure its resident memory.

The limit is not on address space, because CUDA reserves far more than it uses.

Not covered: memory on a GPU.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Collection
from pathlib import Path

SHARE = 0.5
"""Share of the machine's memory that a candidate may use; the judging processes use the rest."""
CGROUP = Path("/sys/fs/cgroup/memory.max")
_PAGE_TABLES = re.compile(r"^VmPTE:\s+(\d+) kB$", re.MULTILINE)


def memory_bound() -> int:
    """Return a candidate's memory limit in bytes: a share of the memory of the machine or
    container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    if CGROUP.is_file() and (limit := CGROUP.read_text().strip()).isdigit():
        total = min(total, int(limit))
    return int(total * SHARE)


def resident(pid: int, more: Collection[int] = ()) -> int:
    """Return the resident memory in bytes of the process group `pid` and of the processes `more`.

    Page tables are included: reading a large mapping that was never written makes gigabytes of
    them, and no limit of the kernel counts them.
    """
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[2]) == pid or int(entry.name) in more:
                total += int(after_name[21]) * resource.getpagesize()
                if tables := _PAGE_TABLES.search((entry / "status").read_text(errors="replace")):
                    total += int(tables[1]) << 10
        except OSError:  # the process has ended
            continue
    return total
