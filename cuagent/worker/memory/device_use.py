"""Measure how much GPU memory an untrusted process uses, from another process.

Free memory is read before, during and after a command. No other process of ours uses the device
meanwhile, so the difference belongs to the worker, regardless of the allocator. NVML could name the
owner, but not inside a container. If others use the GPU too, the difference may be theirs: the
memory that is free again after the process ended decides that.
"""

from __future__ import annotations

from collections.abc import Callable

MARGIN = 1 << 30
"""Bytes that stay free for the contexts and libraries of processes."""
MIN_PEAK_TIMES = 2
"""Smallest limit of a candidate as a multiple of the reference's peak. It holds even if less memory
is free, because then other processes use the device too."""


class DeviceExcess(Exception):
    """The process used more GPU memory than its limit."""


def memory_limit(peak: int, free: int, others: int) -> int:
    """Return the largest number of bytes that a candidate may use.

    It is the free memory `free` less `MARGIN` and less `others`, the bytes that our other processes
    need. It is at least a multiple of `peak`, the bytes that the reference needs.
    """
    return max(free - others - MARGIN, MIN_PEAK_TIMES * peak)


def free_bytes() -> int:
    """Return the free bytes on torch's current device."""
    import torch

    return torch.cuda.mem_get_info()[0]


class DeviceUse:
    """Bytes that one process holds, measured around its commands. Raises DeviceExcess.

    `limit` holds during a command, `kept` after one, when other processes need the device.
    """

    def __init__(
        self, limit: int, kept: int | None = None, free_bytes: Callable[[], int] = free_bytes
    ) -> None:
        self.limit = limit
        self.kept = limit if kept is None else kept
        self._read_free = free_bytes
        self._held = 0
        self._before = 0

    def begin(self) -> None:
        """Start the measurement of a command that is sent next."""
        self._before = self._read_free()

    def check(self) -> int:
        """Return the bytes that the process holds, while the command lasts."""
        if (now := self._measured()) > self.limit:
            raise DeviceExcess(
                f"took more than {self.limit / 2**30:.1f} GiB of device memory, all that is free; "
                "keep fewer or smaller temporary tensors"
            )
        return now

    def end(self, *, released: bool = False) -> None:
        """Finish the measurement of a command; `released` if it should have freed its memory."""
        self._held = self.check()
        if released and self._held > self.kept:
            raise DeviceExcess(
                f"holds {self._held / 2**30:.1f} GiB of device memory after a call, more than the "
                f"{self.kept / 2**30:.1f} GiB that judging leaves free; release temporary memory"
            )

    def was_freed(self) -> bool:
        """Return True if the memory is free again after the process ended."""
        return self._measured() < self.limit / 2

    def _measured(self) -> int:
        return self._held + self._before - self._read_free()
