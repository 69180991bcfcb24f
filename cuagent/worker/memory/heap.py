"""What glibc does with memory that is freed: pinned, since its own rules drift with time.

And what this process keeps of a GPU's. Not covered: other C libraries, which are left as they are.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4


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
