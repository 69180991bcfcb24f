"""Detect out-of-memory errors and report how much memory was needed and how much is free.

A task that is too large for the machine is a mistake of the user, but an allocator's message
("enforce fail at alloc_cpu.cpp") does not say so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_CUDA = re.compile(r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)")
SHARE = 1 / 64
"""Share of a device's memory above which inputs and outputs count as large, since a usual
verdict and timing of eight rungs hold about fifty times their size."""
SMALLER = "give smaller inputs (--inputs), or end other programs that hold memory"
"""Remedy for a task that needs more memory than is free."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shortage(error: BaseException) -> str | None:
    """Return one line with the needed and the free memory; None for an error of another kind."""
    text = str(error)
    if asked := _CPU.search(text):
        return f"needs {size(int(asked[1]))} of memory, but only {size(free())} are free"
    if asked := _CUDA.search(text):
        return f"needs {asked[1]} of GPU memory, more than is free"
    if isinstance(error, MemoryError):
        return f"needs more memory than the {size(free())} that are free"
    return None


def large(count: int, device: str, budget: int | None = None) -> bool:
    """Return True if `count` bytes of inputs and outputs are more than SHARE of the device's
    memory, or of the budget.

    Memory for such a task must be released when it is idle, and copies must be avoided.
    """
    return count > SHARE * total(device, budget)


def total(device: str, budget: int | None = None) -> int:
    """Return the bytes of memory of the machine or of its GPU; at most the budget, if given.

    With a small budget, a small task is handled like a large task on a large machine.
    """
    if device != "cpu":
        import torch

        there = torch.cuda.mem_get_info()[1]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return there if budget is None else min(there, budget)


def free(device: str = "cpu") -> int:
    """Return the bytes of memory that are free on the machine, or on its GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def size(count: float) -> str:
    """Return a number of bytes as text, such as `3.6 TiB`."""
    step = 0
    while count >= 1024 and step < len(_UNITS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.3g} {_UNITS[step]}"
