"""How much of a GPU's memory an untrusted process has taken, seen from another process.

What is free is asked before a command, while it lasts and after it; meanwhile nobody else of ours
uses the device, so that what is gone then is the process's, in whatever way it was allocated. NVML
could name the owner, but not from inside a container. On a GPU that others use as well it may have
been them: that is told by what comes back when the process is ended.
"""

from __future__ import annotations

from collections.abc import Callable

FLOOR = 8 << 30
"""Bytes that every candidate may take: far more than a CUDA context and its libraries, so that
other judges that start on the device meanwhile are not taken for it."""
TIMES, SHARE = 8, 0.5
"""Of what the reference needed at its peak; of the whole device, where that is less."""
LEAST_TIMES = 2
"""Of the reference's peak, whatever share of the device that is."""


class DeviceExcess(Exception):
    """It took more than it may."""


def bound(peak: int, total: int) -> int:
    """Bytes for a candidate whose reference had `peak` allocated, on a device of `total`."""
    return max(min(max(FLOOR, TIMES * peak), int(SHARE * total)), LEAST_TIMES * peak)


def free() -> int:
    """Bytes that nobody has allocated on torch's current device."""
    import torch

    return torch.cuda.mem_get_info()[0]


class DeviceUse:
    """What one process holds, followed from command to command. Raises DeviceExcess."""

    def __init__(self, most: int, free: Callable[[], int] = free) -> None:
        self.most = most
        self._asked = free
        self._held = 0
        self._before = 0

    def begin(self) -> None:
        """A command is about to be sent."""
        self._before = self._asked()

    def look(self) -> int:
        """Bytes that it holds, while the command lasts."""
        if (now := self._now()) > self.most:
            raise DeviceExcess(f"took more than {self.most / 2**30:.1f} GiB of device memory")
        return now

    def end(self) -> None:
        """The command is done."""
        self._held = self.look()

    def came_back(self) -> bool:
        """Once the process is ended: whether that gave back what it was said to hold."""
        return self._now() < self.most / 2

    def _now(self) -> int:
        return self._held + self._before - self._asked()
