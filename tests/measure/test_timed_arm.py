"""Time that a block counts as, with honest and false claims."""

from __future__ import annotations

from typing import Any

import pytest

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.timing.timed_arm import BlockTime, TimedArm, contradiction_of, counted
from cuagent.task import Device

UNUSED: Any = None
"""Placeholder for a session; nothing runs in these tests."""


def timed_arm(name: str, blocks: list[tuple[float, float]]) -> TimedArm:
    return TimedArm(name, UNUSED, 0.0, [BlockTime(claim, wall) for claim, wall in blocks])


def arms(candidate: list[tuple[float, float]]) -> dict[str, TimedArm]:
    eager = [(1e-3, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)]
    return {CANDIDATE: timed_arm(CANDIDATE, candidate), EAGER: timed_arm(EAGER, eager)}


def test_hidden_work_is_counted_on_both_devices() -> None:
    timed_arms = arms([(1e-5, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)])
    for device in Device:
        least = min(counted(timed_arms, device)[CANDIDATE])
        assert 0.98e-3 < least < 1.02e-3
    assert "wall clock" in contradiction_of(timed_arms, Device.CPU)


def test_honest_claim_counts_unchanged() -> None:
    timed_arms = arms([(0.5e-3, 0.6e-3 + 1e-6 * (k % 3)) for k in range(20)])
    for device in Device:
        assert max(counted(timed_arms, device)[CANDIDATE]) < 0.5025e-3
    assert not contradiction_of(timed_arms, Device.CPU)


def test_busy_machine_causes_no_contradiction() -> None:
    # other processes take the processor between the calls of either arm, for up to 10 ms
    delays = [0.0, 4e-3, 1e-2, 0.0, 7e-3] * 4
    candidate = [(0.5e-3, 0.6e-3 + late) for late in delays]
    eager = [(1e-3, 1.1e-3 + late) for late in reversed(delays)]
    timed_arms = {CANDIDATE: timed_arm(CANDIDATE, candidate), EAGER: timed_arm(EAGER, eager)}
    assert not contradiction_of(timed_arms, Device.CPU)


def test_candidate_is_not_charged_the_overhead_of_a_trusted_arm() -> None:
    # seen on an H200: a compiled kernel of 21 us has 6 us more overhead than eager
    quick = [(21e-6, 1.127e-3 + 1e-6 * (k % 3)) for k in range(20)]
    timed_arms = arms(quick) | {"compile": timed_arm("compile", quick)}
    for name in (CANDIDATE, "compile"):
        assert counted(timed_arms, Device.CUDA)[name] == [21e-6] * 20
    assert not contradiction_of(timed_arms, Device.CUDA)


def test_hidden_work_on_a_busy_machine_is_counted_in_quiet_blocks() -> None:
    delays = [0.0, 4e-3, 1e-2, 2e-3, 7e-3] * 4
    candidate = [(1e-5, 1.1e-3 + late) for late in reversed(delays)]
    eager = [(1e-3, 1.1e-3 + late) for late in delays]
    timed_arms = {CANDIDATE: timed_arm(CANDIDATE, candidate), EAGER: timed_arm(EAGER, eager)}
    assert min(counted(timed_arms, Device.CPU)[CANDIDATE]) > 0.98e-3


@pytest.mark.parametrize(("more", "charged"), [(0.9e-3, True), (8e-6, False)])
def test_batching_gain_is_counted_by_claims_if_wall_times_scatter(
    more: float, charged: bool
) -> None:
    late = [0.0, 4e-3, 1e-2, 2e-3, 7e-3] * 4
    timed_arms = arms([(0.1e-3, 0.2e-3) for _ in range(20)])
    claims = {CANDIDATE: 0.1e-3 + more, EAGER: 1e-3}
    for name, made in timed_arms.items():
        walls = late if name == EAGER else late[::-1]
        made.single_calls = [
            BlockTime(claims[name], claims[name] + 0.1e-3 + wall) for wall in walls
        ]
    assert (min(counted(timed_arms, Device.CPU)[CANDIDATE]) > 0.95e-3) is charged
    assert charged or max(counted(timed_arms, Device.CPU)[CANDIDATE]) < 0.105e-3


def test_batching_gain_of_a_whole_block_is_counted() -> None:
    for device in Device:
        timed_arms = arms([(0.1e-3, 0.2e-3 + 1e-6 * (k % 3)) for k in range(20)])
        for made in timed_arms.values():
            made.single_calls = [BlockTime(1e-3, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)]
        assert min(counted(timed_arms, device)[CANDIDATE]) > 0.98e-3


@pytest.mark.parametrize(
    ("claim_more", "wall_more", "charged"),
    [(0.0, 0.0, 0.0), (0.0, 4e-6, 0.0), (30e-6, 30e-6, 30e-6), (0.0, 40e-6, 35e-6)],
    ids=["the same", "memory that is overwritten more slowly", "by claims", "by walls"],
)
def test_single_call_on_a_gpu_is_charged_beyond_the_flush_allowance(
    claim_more: float, wall_more: float, charged: float
) -> None:
    timed_arms = arms([(1e-3, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)])
    for name, more, wall in ((CANDIDATE, claim_more, wall_more), (EAGER, 0.0, 0.0)):
        timed_arms[name].single_calls = [BlockTime(1e-3 + more, 2.3e-3 + wall) for _ in range(20)]
    found = counted(timed_arms, Device.CUDA)[CANDIDATE]
    assert max(found) - 1e-3 == pytest.approx(charged, abs=2e-6)


@pytest.mark.parametrize("with_graph", [False, True])
def test_candidate_is_not_charged_for_an_eager_arm_that_waits_for_the_host(
    with_graph: bool,
) -> None:
    """Eager's blocks take longer than its single calls, whose launches the lead hides."""
    calls = [(0.3e-3, 0.4e-3 + 1e-6 * (k % 3)) for k in range(20)]
    timed_arms = arms(calls)
    if with_graph:
        timed_arms[COMPILE] = timed_arm(COMPILE, calls)
    for name, made in timed_arms.items():
        claim = 0.7e-3 if name == EAGER else 0.3e-3
        made.single_calls = [BlockTime(claim, claim + 1.3e-3) for _ in range(20)]
    timed_arms[EAGER].blocks = [BlockTime(1e-3, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)]
    found = counted(timed_arms, Device.CUDA)[CANDIDATE]
    assert found == pytest.approx([0.3e-3] * 20, abs=1e-9)


@pytest.mark.parametrize(("wake", "charged"), [(60e-6, 0.0), (130e-6, 0.0), (500e-6, 85e-6)])
def test_work_moved_before_the_blocks_is_charged(wake: float, charged: float) -> None:
    """Eager's call takes 1.4 times as long after a stop, so the candidate's may too."""
    timed_arms = arms([(100e-6, 0.2e-3)] * 20)
    for name, seconds in ((CANDIDATE, wake), (EAGER, 1.4e-3)):
        timed_arms[name].calls = 4
        timed_arms[name].wakes = [BlockTime(seconds, seconds + 0.1e-3)] * 20
    found = counted(timed_arms, Device.CUDA)[CANDIDATE]
    assert found == pytest.approx([100e-6 + charged] * 20, abs=4e-6)


def test_false_clock_before_the_blocks_is_charged() -> None:
    timed_arms = arms([(100e-6, 0.2e-3)] * 20)
    for name, claim, wall in ((CANDIDATE, 100e-6, 0.9e-3), (EAGER, 1e-3, 1.1e-3)):
        timed_arms[name].wakes = [BlockTime(claim, wall)] * 20
    assert min(counted(timed_arms, Device.CUDA)[CANDIDATE]) > 700e-6
