"""Measure how much GPU memory an untrusted process uses, from another process.

Free memory is read before, during and after a command. No other process of ours uses the device
meanwhile, so the difference belongs to the worker, regardless of the allocator. NVML could name the
owner, but not inside a container. If others use the GPU too, the difference may be theirs: the
memory that is free again after the process ended decides that.
"""

from __future__ import annotations

from collections.abc import Callable

FLOOR = 8 << 30
"""Bytes that every candidate may use. This is far more than a CUDA context and its libraries need,
so that other judges that start on the device meanwhile do not exceed it."""
PEAK_TIMES, DEVICE_SHARE = 8, 0.5
"""Limit as a multiple of the reference's peak, and as a share of the device if that is less."""
MIN_PEAK_TIMES = 2
"""Least limit as a multiple of the reference's peak, even above DEVICE_SHARE of the device."""


class DeviceExcess(Exception):
    """The process used more GPU memory than its limit."""


def memory_limit(peak: int, total: int) -> int:
    """Return the limit in bytes for a candidate.

    `peak` are the bytes that the reference allocated, `total` those of the device.
    """
    return max(min(max(FLOOR, PEAK_TIMES * peak), int(DEVICE_SHARE * total)), MIN_PEAK_TIMES * peak)


def free_bytes() -> int:
    """Return the free bytes on torch's current device."""
    import torch

    return torch.cuda.mem_get_info()[0]


class DeviceUse:
    """Bytes that one process holds, measured around its commands. Raises DeviceExcess."""

    def __init__(self, limit: int, free_bytes: Callable[[], int] = free_bytes) -> None:
        self.limit = limit
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
                f"took more than {self.limit / 2**30:.1f} GiB of device memory; keep fewer or "
                "smaller temporary tensors"
            )
        return now

    def end(self) -> None:
        """Finish the measurement of a command."""
        self._held = self.check()

    def was_freed(self) -> bool:
        """Return True if the memory is free again after the process ended."""
        return self._measured() < self.limit / 2

    def _measured(self) -> int:
        return self._held + self._before - self._read_free()
