"""Calls in a row: how many, of which arms, and which figure counts."""

from __future__ import annotations

from typing import Any

from cuagent.arms import CANDIDATE, EAGER
from cuagent.measure.timing.in_a_row import CALLS, LEAST_CALLS, ROW_S, ROWS, time_in_a_row
from cuagent.measure.timing.rounds import Round, arm_of
from cuagent.measure.timing.timed_arm import BlockTime, TimedArm
from cuagent.task import Device


class Sessions:
    """Stands for the sessions of all arms: notes the calls, and answers with falling times."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def row(self, inputs: object, slot: int, calls: int, *, deadline_s: float) -> float:
        self.calls.append(calls)
        return 1e-3 / len(self.calls)


class Inputs:
    lent = None

    def lay_out(self, name: str, slots: list[int]) -> None:
        assert slots == [3]


def timed(seconds: dict[str, float]) -> tuple[dict[str, TimedArm], Sessions]:
    session: Any = Sessions()
    blocks = [BlockTime(1.0, 1.0)]
    arms = {
        name: TimedArm(name, session, 0.1, [BlockTime(s, 2 * s) for _ in blocks])
        for name, s in seconds.items()
    }
    batch: Any = Inputs()
    time_in_a_row(arms, batch, 3)
    return arms, session


def test_rows_last_equally_long_and_the_quicker_of_an_arms_rows_counts() -> None:
    arms, session = timed({EAGER: 1e-3, CANDIDATE: 1e-6})
    assert session.calls == [int(ROW_S / 1e-3), CALLS[1]] * ROWS
    assert [arms[name].in_a_row_s for name in (EAGER, CANDIDATE)] == [1e-3 / 3, 1e-3 / 4]


def test_long_calls_are_not_timed_in_a_row_unless_one_arm_is_quick() -> None:
    arms, session = timed({EAGER: 0.05, CANDIDATE: 0.02})
    assert not session.calls
    assert arms[EAGER].in_a_row_s is None
    _, session = timed({EAGER: 0.05, CANDIDATE: 0.001})
    assert session.calls == [LEAST_CALLS, int(ROW_S / 0.001)] * ROWS


def test_a_row_of_an_arm_with_long_calls_has_fewer_of_them() -> None:
    """L3/39 (H200): five arms of 55 ms beside one of 4 ms made 100 calls in each round."""
    _, session = timed({"quick": 0.004, "usual": 0.01, "long": 0.03, "slow": 0.055})
    assert session.calls == [CALLS[0], CALLS[0], 3, LEAST_CALLS] * ROWS


def test_an_arm_keeps_the_quickest_row_of_all_rounds() -> None:
    def of_round(row: float | None) -> Round:
        session: Any = None
        arm = TimedArm(EAGER, session, 0.1, [BlockTime(1e-3, 1e-3)], in_a_row_s=row)
        return Round({EAGER: arm}, {EAGER: [1e-3]}, "", "", "", 0.0)

    rounds = [of_round(3e-3), of_round(2e-3), of_round(None)]
    assert arm_of(EAGER, rounds, "", Device.CUDA).in_a_row_s == 2e-3
    assert arm_of(EAGER, rounds[2:], "", Device.CUDA).in_a_row_s is None
