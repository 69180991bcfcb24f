"""Test which steps of a judgement overlap on each kind of device."""

from __future__ import annotations

import pytest

from cuagent.overlap import Overlap, Prewarm
from cuagent.task import Device


@pytest.mark.parametrize("device", Device)
@pytest.mark.parametrize("large", [False, True])
def test_shared_device_opens_no_process_before_the_step_that_needs_it(
    device: Device, large: bool
) -> None:
    overlap = Overlap.on(device, shared=True, large=large)
    assert not overlap.begin_while_building
    assert not overlap.prewarm_profile
    assert overlap.prewarm is (Prewarm.WHEN_TIMED if large else Prewarm.WHEN_ACCEPTED)


@pytest.mark.parametrize(
    ("device", "moment"),
    [(Device.CPU, Prewarm.WHEN_TIMED), (Device.CUDA, Prewarm.WHILE_BUILDING)],
)
def test_device_of_one_judge_verifies_while_it_compiles(device: Device, moment: Prewarm) -> None:
    overlap = Overlap.on(device, shared=False, large=False)
    assert overlap == Overlap(begin_while_building=True, prewarm=moment, prewarm_profile=True)


@pytest.mark.parametrize("device", Device)
def test_large_task_keeps_no_idle_process(device: Device) -> None:
    overlap = Overlap.on(device, shared=False, large=True)
    assert overlap.prewarm is Prewarm.WHEN_TIMED
    assert not overlap.prewarm_profile
