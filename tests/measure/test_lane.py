"""What counts of a block: no lie pays, and none is needed to be proved."""

from __future__ import annotations

from typing import Any

from cuagent.measure.lane import Clocked, Lane, counted, hidden
from cuagent.task import Device
from cuagent.worker.arms import CANDIDATE, EAGER

UNUSED: Any = None
"""No session is needed where nothing is run."""


def lane(name: str, blocks: list[tuple[float, float]]) -> Lane:
    return Lane(name, UNUSED, 0.0, [Clocked(claim, wall) for claim, wall in blocks])


def arms(candidate: list[tuple[float, float]]) -> dict[str, Lane]:
    eager = [(1e-3, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)]
    return {CANDIDATE: lane(CANDIDATE, candidate), EAGER: lane(EAGER, eager)}


def test_work_hidden_from_the_claim_is_counted_on_both_devices() -> None:
    lanes = arms([(1e-5, 1.1e-3 + 1e-6 * (k % 3)) for k in range(20)])
    for device in Device:
        least = min(counted(lanes, device)[CANDIDATE])
        assert 0.98e-3 < least < 1.02e-3
    assert "wall clock" in hidden(lanes, Device.CPU)


def test_an_honest_claim_counts_as_it_is() -> None:
    lanes = arms([(0.5e-3, 0.6e-3 + 1e-6 * (k % 3)) for k in range(20)])
    for device in Device:
        assert max(counted(lanes, device)[CANDIDATE]) < 0.502e-3
    assert not hidden(lanes, Device.CPU)


def test_a_busy_machine_makes_nobody_a_liar() -> None:
    # others take the processor between the calls of either arm, for up to 10 ms
    delays = [0.0, 4e-3, 1e-2, 0.0, 7e-3] * 4
    candidate = [(0.5e-3, 0.6e-3 + late) for late in delays]
    eager = [(1e-3, 1.1e-3 + late) for late in reversed(delays)]
    lanes = {CANDIDATE: lane(CANDIDATE, candidate), EAGER: lane(EAGER, eager)}
    assert not hidden(lanes, Device.CPU)
