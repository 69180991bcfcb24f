"""Measure how much GPU memory an untrusted process uses, from another process.

Free memory is read before, during and after a command. No other process of ours uses the device
meanwhile, so the difference is the worker's use, regardless of the allocator. NVML could name the
owner, but not inside a container. If other users' processes use the GPU too, the difference may be
theirs. So it counts against the worker only if the memory is free again after the worker ended.
"""

from __future__ import annotations

from collections.abc import Callable

MARGIN = 1 << 30
"""Bytes of GPU memory that stay free for the contexts and libraries of processes."""
MIN_PEAK_TIMES = 2
"""A candidate may always use this multiple of the reference's peak memory, even if less is free,
because then other processes use the device too."""


class DeviceExcess(Exception):
    """Error: the process used more GPU memory than its limit."""


def memory_limit(peak: int, free: int, others: int) -> int:
    """Return the largest number of bytes of GPU memory that a candidate may use.

    It is the free memory `free` less `MARGIN` and less `others`, the bytes that our other processes
    need; at least `MIN_PEAK_TIMES` times `peak`, the bytes that the reference needs.
    """
    return max(free - others - MARGIN, MIN_PEAK_TIMES * peak)


def free_bytes() -> int:
    """Return the free GPU memory of torch's current device in bytes."""
    import torch

    return torch.cuda.mem_get_info()[0]


class DeviceUse:
    """Meter of one process's GPU memory. Its methods raise DeviceExcess if a limit is exceeded.

    `limit` is the largest number of bytes during a command; `kept` the largest after a command,
    when other processes need the device.
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
        """Read the free memory just before a command is sent."""
        self._before = self._read_free()

    def check(self) -> int:
        """Return the bytes of GPU memory that the process uses during the command."""
        if (now := self._measured()) > self.limit:
            raise DeviceExcess(
                f"took more than {self.limit / 2**30:.1f} GiB of device memory, all that is free; "
                "keep fewer or smaller temporary tensors"
            )
        return now

    def end(self, *, released: bool = False) -> None:
        """Finish a command's measurement. `released`: the process should have freed the call's
        memory, so `kept` is checked too."""
        self._held = self.check()
        if released and self._held > self.kept:
            raise DeviceExcess(
                f"holds {self._held / 2**30:.1f} GiB of device memory after a call, more than the "
                f"{self.kept / 2**30:.1f} GiB that judging leaves free; release temporary memory"
            )

    def was_freed(self) -> bool:
        """Return True if most of the measured memory is free again after the process ended.

        The memory was then the process's own, not that of other users.
        """
        return self._measured() < self.limit / 2

    def _measured(self) -> int:
        return self._held + self._before - self._read_free()
