"""How much memory an untrusted process may have, and how much it has.

Never bounded by address space, of which CUDA reserves far more than it uses. Memory on a GPU is not
seen from here.
"""

from __future__ import annotations

import resource
from collections.abc import Collection
from pathlib import Path

SHARE = 0.5
"""Of the machine's memory: the rest is for those who judge."""
CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory_bound() -> int:
    """Bytes for a candidate on this machine, or in this container where that has less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    if CGROUP.is_file() and (limit := CGROUP.read_text().strip()).isdigit():
        total = min(total, int(limit))
    return int(total * SHARE)


def resident(pid: int, beside: Collection[int] = ()) -> int:
    """Bytes that the process group `pid`, and the processes `beside` it, have resident."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(after_name[2]) == pid or int(entry.name) in beside:
            total += int(after_name[21]) * resource.getpagesize()
    return total
