"""What `doctor --timing` says of a machine follows from what it called, and it runs for real."""

from __future__ import annotations

import math

import pytest

from cuagent.measure.timing.self_check import ROWS, Gate, Gates, gates
from cuagent.task import Device
from cuagent.timing import Effort, Standing

SLOWER, FASTER, OPEN = Standing.SLOWER.value, Standing.FASTER.value, Standing.INCONCLUSIVE.value


def gate(delay: float, *called: str, half: float = 0.004, contradictions: int = 0) -> Gate:
    runs = len(called)
    return Gate(delay, (1.0,) * runs, called, (half,) * runs, (1.2,) * runs, contradictions)


def test_a_difference_called_between_equals_is_wrong_and_so_is_a_delay_that_is_not_found() -> None:
    assert gate(0.0, OPEN, FASTER, OPEN, SLOWER).wrong == 2
    assert gate(0.03, SLOWER, OPEN, FASTER).wrong == 2
    assert gate(0.0, OPEN, contradictions=1).wrong == 1


def test_the_resolution_is_the_half_width_of_a_typical_run_and_the_margin() -> None:
    assert gate(0.0, OPEN, half=math.log(1.02)).resolution == pytest.approx(0.03)
    assert gate(0.0).resolution == math.inf


@pytest.mark.parametrize(
    ("half", "can"), [(0.001, "1 3 10"), (0.015, "3 10"), (0.05, "10"), (0.3, "")]
)
def test_the_lines_say_which_differences_the_machine_can_tell_apart(half: float, can: str) -> None:
    found = Gates("some GPU", Effort.QUICK, (gate(0.0, OPEN, half=half / 2),))
    lines = found.lines()
    assert "1 of 1 right" in lines[1]
    told = [line.split("tell ")[1].split("%")[0] for line in lines if "  can tell" in line]
    assert " ".join(told) == can
    assert ("the least that one timing tells apart is a factor of" in lines[-1]) == (can == "")


def test_a_busy_machine_is_named_and_no_line_is_wider_than_a_terminal() -> None:
    busy = Gate(0.03, (1.0428,), (OPEN,), (2.0,), (15.7,), busy=0.9)
    lines = Gates("a processor of a long name, 2 threads", Effort.QUICK, (busy,)).lines()
    assert "  others took 90% of the processors; in peace it can tell more" in lines
    assert max(map(len, lines)) <= 80


def test_gates_time_the_reference_against_itself_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROWS, Device.CPU, 100)
    measured = gates(Device.CPU, runs=1, delays=(0.0,))
    (same,) = measured.gates
    assert len(same.ratios) == len(same.half_widths) == 1
    # One in a hundred may be called, by the promise of the interval; what it says must be a word.
    assert same.called[0] in {standing.value for standing in Standing}
    assert 0 < same.seconds[0] < 60
    assert "the same against itself" in measured.lines()[1]
