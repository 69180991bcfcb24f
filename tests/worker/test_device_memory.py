"""Tests of `DeviceUse`, which measures a process's GPU memory from the free memory around
commands."""

from __future__ import annotations

import pytest

from cuagent.worker.memory.device_use import MARGIN, DeviceExcess, DeviceUse, memory_limit

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
    use = DeviceUse(4 * GIB, free_bytes=device)
    command(use, device, 3 * GIB)
    device.free -= 50 * GIB  # used by the judge between two commands
    command(use, device, -GIB)
    command(use, device, 2 * GIB)
    with pytest.raises(DeviceExcess, match=r"took more than 4\.0 GiB of device memory"):
        command(use, device, GIB)


def test_excess_is_detected_during_a_command_and_attributed_after_its_end() -> None:
    device = Device()
    use = DeviceUse(4 * GIB, free_bytes=device)
    use.begin()
    device.free -= 90 * GIB
    with pytest.raises(DeviceExcess):
        use.check()
    assert not use.was_freed()  # the process ended and the memory is still used: by another one
    device.free += 90 * GIB
    assert use.was_freed()


def test_memory_limit_is_what_is_free_without_the_needs_of_others() -> None:
    assert memory_limit(1 * GIB, free=80 * GIB, others=10 * GIB) == 70 * GIB - MARGIN


def test_memory_limit_is_at_least_twice_the_reference_peak() -> None:
    assert memory_limit(4 * GIB, free=10 * GIB, others=9 * GIB) == 8 * GIB


def test_memory_kept_after_a_call_is_limited_only_where_it_should_be_released() -> None:
    device = Device()
    use = DeviceUse(40 * GIB, kept=4 * GIB, free_bytes=device)
    command(use, device, 30 * GIB)  # an untimed call, whose memory the timed one uses
    use.begin()
    device.free += 20 * GIB
    with pytest.raises(DeviceExcess, match=r"holds 10\.0 GiB .* after a call, more than the 4\.0"):
        use.end(released=True)
