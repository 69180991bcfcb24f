"""Tests of `DeviceUse`, which measures a process's GPU memory from the free memory around
commands."""

from __future__ import annotations

import pytest

from cuagent.worker.memory.device_use import FLOOR, DeviceExcess, DeviceUse, memory_limit

GIB = 1 << 30


class Device:
    """A GPU that other processes use too, with a known number of free bytes."""

    def __init__(self) -> None:
        self.free = 100 * GIB

    def __call__(self) -> int:
        return self.free


def command(use: DeviceUse, device: Device, takes: int) -> None:
    use.begin()
    device.free -= takes
    use.end()


def test_device_use_adds_up_over_commands() -> None:
    device = Device()
    use = DeviceUse(4 * GIB, device)
    command(use, device, 3 * GIB)
    device.free -= 50 * GIB  # used by the judge between two commands
    command(use, device, -GIB)
    command(use, device, 2 * GIB)
    with pytest.raises(DeviceExcess, match=r"took more than 4\.0 GiB of device memory"):
        command(use, device, GIB)


def test_excess_is_detected_during_a_command_and_attributed_after_its_end() -> None:
    device = Device()
    use = DeviceUse(4 * GIB, device)
    use.begin()
    device.free -= 90 * GIB
    with pytest.raises(DeviceExcess):
        use.check()
    assert not use.was_freed()  # the process ended and the memory is still used: by another one
    device.free += 90 * GIB
    assert use.was_freed()


def test_memory_limit_is_at_least_twice_the_reference_peak() -> None:
    total = 80 * GIB
    assert memory_limit(100 << 20, total) == FLOOR
    assert memory_limit(100 << 20, 6 * GIB) == 3 * GIB
    assert memory_limit(2 * GIB, total) == 16 * GIB
    assert memory_limit(10 * GIB, total) == 40 * GIB
    assert memory_limit(30 * GIB, total) == 60 * GIB
