"""Configure how glibc's malloc reuses and returns memory; its own thresholds change while it runs.

Also release torch's cached GPU memory.

Not covered: other C libraries, which are left as they are.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_PERTURB = -6
LEAST_MAPPED = 4 << 20
"""Bytes of the smallest tensor whose memory goes back to the system when it is freed.

The temporary tensors of a comparison are smaller; mapping new memory for each would take ten times
as long as their arithmetic.
"""
MMAPS = 65536
"""Largest number of allocations that malloc makes with mmap: glibc's default."""
FILLS = (0x01, 0xA5, 0x40, 0xBF)
"""Values for M_PERTURB. With value b, freed memory is filled with b, and `malloc` returns memory
filled with the complement of b.

As fp32 these give -1.7e38, 1.5e16, -1.5 and 3.0 in unused memory, and 2e-38, -3e-16, 3.0 and -1.5
in freed memory.
"""

KEPT_SHARE, KEPT_SHARE_OF_MANY = 1 / 16, 1 / 64
"""Shares of the free GPU memory that an oracle may keep unused between two requests: as the only
judge of a device, and as one of many.
"""
KEPT_BYTES = 1 << 30
"""Bytes of unused GPU memory that a process of cuagent keeps between two requests."""


def pin_allocator() -> None:
    """Fix malloc's thresholds for mmap and for returning memory, in this process and its children.

    Measured: equal modules with temporaries of 8 MiB differed by a factor of two in time, because
    one process returned its heap to the system after every call and took 2048 page faults to get it
    again.
    """
    _set(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc accepts
    _set(_M_TRIM_THRESHOLD, 2**31 - 1)


def keep_memory() -> None:
    """Let this process (the oracle) reuse freed memory of any size; at most 2 GiB stay idle.

    Otherwise tensors of 32 MiB and more are mapped anew each time. On 4 million logits in fp64 a
    fifth of the oracle's processor time was page faults.
    """
    _set(_M_MMAP_MAX, 0)


def return_memory() -> None:
    """Return freed memory of tensors from LEAST_MAPPED bytes to the system from now on, for large
    tasks."""
    _set(_M_MMAP_MAX, MMAPS)
    _set(_M_MMAP_THRESHOLD, LEAST_MAPPED)
    give_back("cpu")


def fill(byte: int) -> None:
    """Let `malloc` fill new and freed memory with patterns of `byte`; 0 turns this off.

    Fresh memory of a process is zero, so a kernel that reads unwritten memory would be right by
    luck. `calloc` still returns zeros.
    """
    _set(_M_PERTURB, byte)


def give_back(device: str) -> None:
    """Return unused cached memory now: to the system for "cpu", else torch's cache to the GPU."""
    if device != "cpu":
        import torch

        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def give_back_surplus(
    kept: int = KEPT_BYTES, share: float = 0.0, budget: int | None = None
) -> None:
    """Return torch's cached GPU memory to the GPU if more of it is unused than `kept` bytes and
    than `share` of the free memory, or of `budget` bytes if these are fewer.

    Memory that the next request needs is then allocated anew, which takes milliseconds for a
    gigabyte and waits for the GPU.
    """
    import torch

    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if unused > kept:
        there = torch.cuda.mem_get_info()[0]
        if unused > share * (there if budget is None else min(there, budget)):
            torch.cuda.empty_cache()


def _set(option: int, value: int) -> None:
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(option, value)
