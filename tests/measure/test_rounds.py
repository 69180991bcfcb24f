"""Rounds of a timing that count, and confirmation of evidence against a candidate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.timing.rounds import MOST_RETRIES, ROUNDS_TO_CONFIRM, TWIN, Round, Rounds
from cuagent.task import Device

HONEST = Round({}, {}, wrong="", outside_cores="", clock_contradiction="", busy=0.0)
CONTRADICTED = Round(
    {}, {}, wrong="", outside_cores="", clock_contradiction="a call claims 1 us", busy=0.3
)


def rounds_after(*taken: Round) -> Rounds:
    rounds = Rounds(Device.CPU)
    for each in taken:
        assert not rounds.refused
        rounds.add(each)
    return rounds


def test_one_contradicted_round_is_discarded_without_refusal() -> None:
    rounds = rounds_after(CONTRADICTED, HONEST)
    assert rounds.valid == [HONEST]
    assert not rounds.refused
    assert rounds.busy == 0.0


def test_contradiction_in_consecutive_fresh_processes_is_refused() -> None:
    assert not rounds_after(*[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1)).refused
    assert not rounds_after(
        *[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1), HONEST, *[CONTRADICTED] * (ROUNDS_TO_CONFIRM - 1)
    ).refused
    rounds = rounds_after(HONEST, *[CONTRADICTED] * ROUNDS_TO_CONFIRM)
    assert rounds.contradiction == CONTRADICTED.clock_contradiction
    assert rounds.valid == [HONEST, CONTRADICTED]


def test_notes_report_other_processes_and_throttling() -> None:
    assert rounds_after(HONEST).notes == ()
    rounds = rounds_after(
        HONEST, replace(HONEST, busy=0.4), replace(HONEST, slowed=3), replace(HONEST, slowed=2)
    )
    assert rounds.notes == (
        "machine busy: 40% used by other processes",
        "the GPU throttled in 5 repeats that count",
    )


@pytest.mark.parametrize("fault", ["wrong", "outside_cores"])
def test_wrong_output_and_unbound_thread_are_refused_immediately(fault: str) -> None:
    said = {"wrong": "", "outside_cores": ""} | {fault: "this"}
    rounds = rounds_after(HONEST, Round({}, {}, clock_contradiction="", busy=0.0, **said))
    assert rounds.refused
    assert (rounds.wrong, rounds.contradiction) == (said["wrong"], said["outside_cores"])


def timed(eager: float, compiled: float, candidate: float = 110.0) -> Round:
    """Return a round with these microseconds for each arm's blocks."""
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


def test_delayed_baseline_is_timed_again() -> None:
    usual, late = timed(33, 26), timed(33, 229)
    baseline_times: dict[str, list[float]] = {}
    assert rounds_on_gpu(baseline_times, usual).valid == [usual]
    rounds = rounds_on_gpu(baseline_times, late, usual)
    assert rounds.valid == [usual]
    assert rounds.notes == ()


def test_repeatedly_delayed_baseline_is_noted() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = rounds_on_gpu(baseline_times, *[timed(33, 229)] * (MOST_RETRIES + 1))
    assert len(rounds.valid) == 1
    assert rounds.notes == (
        "compile was delayed: it took 8.8 times its usual time, "
        "so the speedup over it is too large",
    )


def test_baseline_delayed_twice_gets_a_fresh_process() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = Rounds(Device.CUDA, baseline_times)
    replaced = []
    for _ in range(MOST_RETRIES + 1):
        rounds.add(timed(33, 229))
        replaced.append(rounds.process_to_replace)
    assert replaced == ["", COMPILE, ""]


def test_delay_below_the_factor_is_accepted() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    assert rounds_on_gpu(baseline_times, timed(33, 26 * 1.25)).valid
    assert not rounds_on_gpu(baseline_times, timed(33, 26 * 1.35)).valid


def test_one_fast_round_does_not_set_the_usual_time() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 18))
    usual = timed(33, 26)
    taken = [len(rounds_on_gpu(baseline_times, *[usual] * 3).valid) for _ in range(3)]
    assert taken[-1] == 3


def test_wrong_output_is_refused_despite_a_delayed_baseline() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    rounds = rounds_on_gpu(baseline_times, replace(timed(33, 229), wrong="an answer"))
    assert rounds.refused


def test_unconfirmed_contradiction_uses_no_retry() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    late = timed(33, 229)
    lied = replace(late, clock_contradiction="a call claims 1 us")
    assert rounds_on_gpu(baseline_times, lied, lied, *[late] * MOST_RETRIES).valid == []


def test_baseline_without_blocks_is_never_delayed() -> None:
    lost = timed(33, 26)
    lost.counted[COMPILE] = []
    assert rounds_on_gpu({}, lost).valid == [lost]


def test_eager_can_be_delayed() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    assert rounds_on_gpu(baseline_times, timed(50, 26)).valid == []


def test_slowdown_of_all_baselines_is_no_delay() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26))
    slower = timed(66, 53)
    assert rounds_on_gpu(baseline_times, slower).valid == [slower]


def test_slow_candidate_does_not_delay_baselines() -> None:
    baseline_times: dict[str, list[float]] = {}
    rounds_on_gpu(baseline_times, timed(33, 26, candidate=20))
    slow = timed(33, 26, candidate=900)
    assert rounds_on_gpu(baseline_times, slow).valid == [slow]


def test_slow_first_round_of_a_baseline_is_confirmed_once() -> None:
    first, second = timed(33, 120), timed(33, 119)
    assert rounds_on_gpu({}, first, second).valid == [second]
    assert rounds_on_gpu({}, timed(33, 229), timed(33, 26)).valid == [timed(33, 26)]


def test_cpu_rounds_are_not_repeated_for_delays() -> None:
    rounds = Rounds(Device.CPU)
    for each in (timed(33, 26), timed(33, 229)):
        assert rounds.add(each)


def test_twin_is_not_a_baseline() -> None:
    odd = timed(33, 26)
    odd.counted[TWIN] = [1e-3] * 5
    assert rounds_on_gpu({}, odd).valid == [odd]
