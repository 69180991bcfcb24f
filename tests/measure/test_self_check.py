"""The report of `doctor --timing`, and one real self-check."""

from __future__ import annotations

import math

import pytest

from cuagent.measure.timing.self_check import ROWS, KnownDifference, SelfCheck, self_check
from cuagent.task import Device
from cuagent.timing import Effort, Standing

SLOWER, FASTER, OPEN = Standing.SLOWER.value, Standing.FASTER.value, Standing.INCONCLUSIVE.value


def difference(
    delay: float, *called: str, half: float = 0.004, contradictions: int = 0
) -> KnownDifference:
    runs = len(called)
    return KnownDifference(
        delay, (1.0,) * runs, called, (half,) * runs, (1.2,) * runs, contradictions
    )


def test_wrong_counts_false_differences_missed_delays_and_refusals() -> None:
    assert difference(0.0, OPEN, FASTER, OPEN, SLOWER).wrong == 2
    assert difference(0.03, SLOWER, OPEN, FASTER).wrong == 2
    assert difference(0.0, OPEN, contradictions=1).wrong == 1


def test_resolution_is_the_median_half_width_plus_the_margin() -> None:
    assert difference(0.0, OPEN, half=math.log(1.02)).resolution == pytest.approx(0.03)
    assert difference(0.0).resolution == math.inf


@pytest.mark.parametrize(
    ("half", "can"), [(0.001, "1 3 10"), (0.015, "3 10"), (0.05, "10"), (0.3, "")]
)
def test_lines_list_the_differences_that_the_machine_resolves(half: float, can: str) -> None:
    found = SelfCheck("some GPU", Effort.QUICK, (difference(0.0, OPEN, half=half / 2),))
    lines = found.lines()
    assert "1 of 1 right" in lines[1]
    shares = [line.split("of ")[1].split("%")[0] for line in lines if "  can resolve" in line]
    assert " ".join(shares) == can
    assert ("the smallest factor that one timing resolves is" in lines[-1]) == (can == "")


def test_lines_report_a_busy_machine_and_fit_into_80_columns() -> None:
    busy = KnownDifference(0.03, (1.0428,), (OPEN,), (2.0,), (15.7,), busy=0.9)
    lines = SelfCheck("a processor of a long name, 2 threads", Effort.QUICK, (busy,)).lines()
    assert "  other processes used 90% of the processors; an idle machine resolves more" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_self_check_times_the_reference_against_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROWS, Device.CPU, 100)
    measured = self_check(Device.CPU, runs=1, delays=(0.0,))
    (same,) = measured.gates
    assert len(same.ratios) == len(same.half_widths) == 1
    # The interval may exclude 1 once in a hundred runs, so any standing is accepted.
    assert same.called[0] in {standing.value for standing in Standing}
    assert 0 < same.seconds[0] < 60
    assert "the same against itself" in measured.lines()[1]
