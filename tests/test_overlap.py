"""Test which steps of a judgement overlap on each kind of device."""

from __future__ import annotations

import pytest

from cuagent.overlap import BUSY_BYTES, Overlap, Prewarm
from cuagent.task import Device


@pytest.mark.parametrize("device", Device)
@pytest.mark.parametrize("large", [False, True])
def test_shared_device_opens_no_process_before_the_step_that_needs_it(
    device: Device, large: bool
) -> None:
    overlap = Overlap.on(device, shared=True, large=large, bytes_per_call=1)
    assert not overlap.begin_while_building
    assert not overlap.prewarm_profile
    assert overlap.prewarm is Prewarm.WHEN_TIMED


@pytest.mark.parametrize(
    ("device", "moment"),
    [(Device.CPU, Prewarm.WHEN_TIMED), (Device.CUDA, Prewarm.WHILE_BUILDING)],
)
def test_device_of_one_judge_verifies_while_it_compiles(device: Device, moment: Prewarm) -> None:
    overlap = Overlap.on(device, shared=False, large=False, bytes_per_call=1)
    assert overlap == Overlap(
        begin_while_building=True,
        prewarm=moment,
        prewarm_profile=True,
        open_while_verifying=True,
    )


@pytest.mark.parametrize("device", Device)
def test_large_task_keeps_no_idle_process(device: Device) -> None:
    overlap = Overlap.on(device, shared=False, large=True, bytes_per_call=BUSY_BYTES)
    assert overlap.prewarm is Prewarm.WHEN_TIMED
    assert not overlap.prewarm_profile


def test_gpu_that_verifies_large_tensors_opens_no_other_rung() -> None:
    def opens(device: Device, size: int) -> bool:
        return Overlap.on(
            device, shared=False, large=False, bytes_per_call=size
        ).open_while_verifying

    assert opens(Device.CUDA, BUSY_BYTES - 1)
    assert not opens(Device.CUDA, BUSY_BYTES)
    assert opens(Device.CPU, BUSY_BYTES)
