"""Recognize out-of-memory errors, and say how much memory was needed and how much is free.

A task that is too large for the machine is a mistake of the user, but an allocator's message
("enforce fail at alloc_cpu.cpp") does not say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_CUDA = re.compile(r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)")
SHARE = 1 / 64
"""A task is large if its inputs and outputs, as float32, exceed this share of the device's memory.

A usual verdict and timing of eight rungs need about fifty times their size."""
SMALLER = "give smaller inputs (--inputs), or end other programs that hold memory"
"""Advice for a task that needs more memory than is free."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shortage(error: BaseException) -> str | None:
    """Return one line with the needed and the free memory if `error` is out of memory, else
    None."""
    text = str(error)
    if asked := _CPU.search(text):
        return f"needs {size(int(asked[1]))} of memory, but only {size(free())} are free"
    if asked := _CUDA.search(text):
        return f"needs {asked[1]} of GPU memory, more than is free"
    if isinstance(error, MemoryError):
        return f"needs more memory than the {size(free())} that are free"
    return None


def large(count: int, device: str, budget: int | None = None) -> bool:
    """Return True if `count` bytes of inputs and outputs make a task large for this device or
    budget.

    They do if they exceed SHARE of its memory. Memory for such a task must be released while it is
    idle, and copies must be avoided.
    """
    return count > SHARE * total(device, budget)


def as_float32(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of these tensors, with half-precision numbers counted as float32.

    The fp64 runs take the most memory, and they are equally large for both.
    """
    least = 4  # bytes of a float32
    return sum(
        t.numel() * max(least, t.element_size()) if t.is_floating_point() else t.nbytes
        for t in tensors
    )


def total(device: str, budget: int | None = None) -> int:
    """Return the bytes of memory of the machine or of its GPU, or `budget` if that is less.

    With a small budget, a small task is treated like a large task on a large machine.
    """
    if device != "cpu":
        import torch

        there = torch.cuda.mem_get_info()[1]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return there if budget is None else min(there, budget)


def free(device: str = "cpu") -> int:
    """Return the free memory of the machine, or of its GPU, in bytes."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def size(count: float) -> str:
    """Format a number of bytes, such as `3.6 TiB`."""
    step = 0
    while count >= 1024 and step < len(_UNITS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.3g} {_UNITS[step]}"
