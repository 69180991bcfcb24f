"""What glibc does with memory that is freed: pinned, since its own rules drift with time.

And what this process keeps of a GPU's. Not covered: other C libraries, which are left as they are.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_PERTURB = -6
FILLS = (0x01, 0xA5, 0x40, 0xBF)
"""What freed memory is filled with; what `malloc` gives out holds the complement. As fp32 these are
-1.7e38, 1.5e16, -1.5 and 3.0 where it was not used before, and else 2e-38, -3e-16, 3.0 and -1.5."""


def pin_allocator() -> None:
    """Fix the thresholds, for this process and what it forks.

    Measured: equal modules whose temporaries are 8 MiB differed by a factor of two, because one
    process gave its heap back after every call and took 2048 page faults to get it again.
    """
    _set(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc accepts
    _set(_M_TRIM_THRESHOLD, 2**31 - 1)


def keep_memory() -> None:
    """Use freed memory again whatever its size; at most 2 GiB of it lie idle. For the oracle.

    Tensors of 32 MiB and more would be mapped anew each time: a fifth of its processor time on 4
    million logits in fp64 was page faults.
    """
    _set(_M_MMAP_MAX, 0)


def fill(byte: int) -> None:
    """Have `malloc` fill what it gives out and what is freed, whatever asks for it; 0 ends that.

    Memory that a process got just now is zero, so that a kernel which reads what nobody wrote is
    right by luck. `calloc` still gives zeros.
    """
    _set(_M_PERTURB, byte)


def give_back(device: str) -> None:
    """What is kept so and not in use, to the system or the GPU: where others need it more."""
    if device != "cpu":
        import torch

        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _set(what: int, value: int) -> None:
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(what, value)
