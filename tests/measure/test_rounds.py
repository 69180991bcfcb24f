"""Which rounds of a timing count, and when what they say against a candidate is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuagent.measure.timing.rounds import MOST_RETRIES, ROUNDS_TO_CONFIRM, TWIN, Round, Rounds
from cuagent.task import Device
from cuagent.worker.arms import CANDIDATE, COMPILE, EAGER

HONEST = Round({}, {}, wrong="", outside_cores="", clock_contradiction="", busy=0.0)
CONTRADICTED = Round(
    {}, {}, wrong="", outside_cores="", clock_contradiction="a call claims 1 us", busy=0.3
)


def after(*taken: Round) -> Rounds:
    rounds = Rounds(Device.CPU)
    for each in taken:
        assert not rounds.refused
        rounds.add(each)
    return rounds


def test_a_clock_that_is_contradicted_once_costs_a_round_and_nobody_is_accused() -> None:
    rounds = after(CONTRADICTED, HONEST)
    assert rounds.valid == [HONEST]
    assert not rounds.refused
    assert rounds.busy == 0.0


def test_a_clock_is_a_contradiction_when_fresh_processes_show_it_in_a_row() -> None:
    assert not after(*[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1)).refused
    assert not after(
        *[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1), HONEST, *[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1)
    ).refused
    rounds = after(HONEST, *[CONTRADICTED] * ROUNDS_TO_CONFIRM)
    assert rounds.contradiction == CONTRADICTED.clock_contradiction
    assert rounds.valid == [HONEST, CONTRADICTED]


def test_a_reader_is_told_of_others_and_of_a_gpu_that_throttled() -> None:
    assert after(HONEST).notes == ()
    rounds = after(
        HONEST, replace(HONEST, busy=0.4), replace(HONEST, slowed=3), replace(HONEST, slowed=2)
    )
    assert rounds.notes == (
        "machine busy: 40% used by other processes",
        "the GPU throttled in 5 repeats that count",
    )


@pytest.mark.parametrize("fault", ["wrong", "outside_cores"])
def test_a_wrong_answer_and_a_thread_elsewhere_are_believed_at_once(fault: str) -> None:
    said = {"wrong": "", "outside_cores": ""} | {fault: "this"}
    rounds = after(HONEST, Round({}, {}, clock_contradiction="", busy=0.0, **said))
    assert rounds.refused
    assert (rounds.wrong, rounds.contradiction) == (said["wrong"], said["outside_cores"])


def timed(eager: float, compiled: float, candidate: float = 110.0) -> Round:
    """Microseconds of each arm in a round's blocks."""
    us = {EAGER: eager, COMPILE: compiled, CANDIDATE: candidate}
    return replace(HONEST, counted={name: [t * 1e-6] * 5 for name, t in us.items()})


def rounds_on_gpu(baseline_times: dict[str, list[float]], *taken: Round) -> Rounds:
    rounds = Rounds(Device.CUDA, baseline_times)
    for each in taken:
        rounds.add(each)
    return rounds


@pytest.fixture(autouse=True)
def _nothing_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Round, "charged", 0.0)


def test_a_baseline_that_was_held_up_gets_another_try() -> None:
    usual, late = timed(33, 26), timed(33, 229)
    baseline_times: dict[str, list[float]] = {}
    assert rounds_on_gpu(baseline_times, usual).valid == [usual]
    rounds = rounds_on_gpu(baseline_times, late, usual)
    assert rounds.valid == [usual]
    assert rounds.notes == ()


def test_a_baseline_that_is_held_up_time_and_again_is_told() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = rounds_on_gpu(baseline_times, *[timed(33, 229)] * (MOST_RETRIES + 1))
    assert len(rounds.valid) == 1
    assert rounds.notes == (
        "compile was delayed: it took 8.8 times its usual time, "
        "so the speedup over it is too large",
    )


def test_a_process_that_was_held_up_twice_is_not_asked_again() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = Rounds(Device.CUDA, baseline_times)
    replaced = []
    for _ in range(MOST_RETRIES + 1):
        rounds.add(timed(33, 229))
        replaced.append(rounds.process_to_replace)
    assert replaced == ["", COMPILE, ""]


def test_a_little_more_than_usual_is_no_hold_up() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    assert rounds_on_gpu(baseline_times, timed(33, 26 * 1.25)).valid
    assert not rounds_on_gpu(baseline_times, timed(33, 26 * 1.35)).valid


def test_one_lucky_round_is_not_the_measure_for_good() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 18))
    usual = timed(33, 26)
    taken = [len(rounds_on_gpu(baseline_times, *[usual] * 3).valid) for _ in range(3)]
    assert taken[-1] == 3


def test_what_is_wrong_is_believed_though_a_baseline_was_held_up() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = rounds_on_gpu(baseline_times, replace(timed(33, 229), wrong="an answer"))
    assert rounds.refused


def test_a_round_that_is_seen_again_for_a_lie_costs_no_patience() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    late = timed(33, 229)
    lied = replace(late, clock_contradiction="a call claims 1 us")
    assert rounds_on_gpu(baseline_times, lied, lied, *[late] * MOST_RETRIES).valid == []


def test_a_baseline_without_blocks_is_none() -> None:
    lost = timed(33, 26)
    lost.counted[COMPILE] = []
    assert rounds_on_gpu({}, lost).valid == [lost]


def test_eager_may_be_held_up_as_well() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    assert rounds_on_gpu(baseline_times, timed(50, 26)).valid == []


def test_clocks_that_fall_for_all_hold_nobody_up() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    slower = timed(66, 53)
    assert rounds_on_gpu(baseline_times, slower).valid == [slower]


def test_a_candidate_that_is_slow_holds_nobody_up() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26, candidate=20))
    slow = timed(33, 26, candidate=900)
    assert rounds_on_gpu(baseline_times, slow).valid == [slow]


def test_a_first_time_far_over_eagers_is_looked_at_twice_and_then_believed() -> None:
    first, second = timed(33, 120), timed(33, 119)
    assert rounds_on_gpu({}, first, second).valid == [second]
    assert rounds_on_gpu({}, timed(33, 229), timed(33, 26)).valid == [timed(33, 26)]


def test_on_a_cpu_where_the_quietest_blocks_count_no_round_is_taken_again_for_it() -> None:
    rounds = Rounds(Device.CPU)
    for each in (timed(33, 26), timed(33, 229)):
        assert rounds.add(each)


def test_a_twin_is_no_baseline() -> None:
    odd = timed(33, 26)
    odd.counted[TWIN] = [1e-3] * 5
    assert rounds_on_gpu({}, odd).valid == [odd]
