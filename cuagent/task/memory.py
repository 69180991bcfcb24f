"""Whether an error is a want of memory, and how much was asked for where how much is free.

A task that is too large for the machine is a mistake of the user's like any other, and an
allocator's own words ("enforce fail at alloc_cpu.cpp") do not say so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_CUDA = re.compile(r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)")
SHARE = 1 / 32
"""Of a device's memory: a verdict and a timing hold some twenty times the inputs and outputs."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shortage(error: BaseException) -> str | None:
    """What was asked for and what there is, in one line; None for an error of another kind."""
    text = str(error)
    if asked := _CPU.search(text):
        return f"needs {size(int(asked[1]))} at once, and {size(free())} of memory are free"
    if asked := _CUDA.search(text):
        return f"needs {asked[1]} at once, more than the GPU has free"
    if isinstance(error, MemoryError):
        return f"needs more than the {size(free())} of memory that are free"
    return None


def large(count: int, device: str) -> bool:
    """Whether so many bytes of inputs and outputs are a share of the device's memory that counts:
    what is held of them then must be asked back, and what is copied must be spared."""
    return count > SHARE * total(device)


def total(device: str) -> int:
    """Bytes of memory that the machine has, or its GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free(device: str = "cpu") -> int:
    """Bytes of memory that this machine can still give, or its GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def size(count: float) -> str:
    """A number of bytes for a reader: `3.6 TiB`."""
    step = 0
    while count >= 1024 and step < len(_UNITS) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.3g} {_UNITS[step]}"
