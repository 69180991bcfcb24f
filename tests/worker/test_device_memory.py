"""What a process has taken of a GPU, told from what is free around its commands."""

from __future__ import annotations

import pytest

from cuagent.worker.memory.device_use import FLOOR, DeviceExcess, DeviceUse, memory_limit

GIB = 1 << 30


class Device:
    """Somebody's GPU: how much of it is free."""

    def __init__(self) -> None:
        self.free = 100 * GIB

    def __call__(self) -> int:
        return self.free


def command(use: DeviceUse, device: Device, takes: int) -> None:
    use.begin()
    device.free -= takes
    use.end()


def test_what_is_taken_bit_by_bit_adds_up() -> None:
    device = Device()
    use = DeviceUse(4 * GIB, device)
    command(use, device, 3 * GIB)
    device.free -= 50 * GIB  # the judge's own, between two commands
    command(use, device, -GIB)
    command(use, device, 2 * GIB)
    with pytest.raises(DeviceExcess, match=r"took more than 4\.0 GiB of device memory"):
        command(use, device, GIB)


def test_an_excess_is_seen_while_a_command_lasts_and_is_its_own_if_it_comes_back() -> None:
    device = Device()
    use = DeviceUse(4 * GIB, device)
    use.begin()
    device.free -= 90 * GIB
    with pytest.raises(DeviceExcess):
        use.check()
    assert not use.was_freed()  # the process is gone and the memory is not: it was another's
    device.free += 90 * GIB
    assert use.was_freed()


def test_the_bound_is_generous_and_never_less_than_twice_what_the_reference_needs() -> None:
    total = 80 * GIB
    assert memory_limit(100 << 20, total) == FLOOR
    assert memory_limit(100 << 20, 6 * GIB) == 3 * GIB
    assert memory_limit(2 * GIB, total) == 16 * GIB
    assert memory_limit(10 * GIB, total) == 40 * GIB
    assert memory_limit(30 * GIB, total) == 60 * GIB
