"""When a record timing stops, simulated with the functions that decide it: no noise is a gain."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.timing import rounds as timing_rounds
from cuagent.measure.timing.rounds import (
    AGREEING,
    AGREEING_SHARE,
    CLEAR,
    CLEAR_ROUNDS,
    FAR,
    HOPELESS,
    HOPELESS_RUNG,
    LONG_CALL_S,
    LOOKS,
    SCATTERED,
    Round,
    hopeless_rungs,
    is_clear,
    is_decided,
    is_hopeless,
    ratio,
)
from cuagent.task import Device
from cuagent.timing import Effort, Ratio, Standing

EMPTY = Round({}, {}, wrong="", outside_cores="", clock_contradiction="", busy=0.0)
BETWEEN = (0.004, 0.03, 0.1)
"""Standard deviations of a log ratio from one set of processes to the next: a GPU's, a quiet
processor's, a busy one's."""


def taken(microseconds: dict[str, float]) -> Round:
    return replace(EMPTY, counted={name: [t * 1e-6] * 5 for name, t in microseconds.items()})


def drawn(rng: random.Random, between: float, speedup: float) -> Round:
    """Return a round whose processes scatter; the candidate is `speedup` times as fast."""
    arms = {EAGER: 100.0, COMPILE: 100.0, CANDIDATE: 100.0 / speedup}
    spread = between / math.sqrt(2)  # of one process
    return taken({name: t * math.exp(rng.gauss(0, spread)) for name, t in arms.items()})


def record(
    rng: random.Random, between: float, speedup: float, names: tuple[str, ...] = (EAGER, COMPILE)
) -> tuple[dict[str, Ratio], int]:
    """Return the ratios of a record timing and its number of rounds, as the timer decides it."""
    rounds = [drawn(rng, between, speedup)]
    while True:
        rounds.append(drawn(rng, between, speedup))
        found = ratios_of(rounds, names)
        if is_decided(rounds, found, Device.CUDA, alone=False):
            return found, len(rounds)


def ratios_of(rounds: list[Round], names: tuple[str, ...] = (EAGER, COMPILE)) -> dict[str, Ratio]:
    return {name: ratio(rounds, name, CANDIDATE, Effort.RECORD, Device.CUDA) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("between", BETWEEN)
def test_equal_modules_are_called_faster_at_most_once_in_a_hundred(between: float) -> None:
    rng, experiments = random.Random(1), 3000
    # One baseline is the worst case: with two, both must be decided at the first look.
    found = (record(rng, between, 1.0, (EAGER,))[0][EAGER] for _ in range(experiments))
    called = sum(ratio.standing is Standing.FASTER for ratio in found)
    # Three standard deviations of the count for a rate of 1 %.
    assert called <= experiments * 0.01 + 3 * math.sqrt(experiments * 0.01)


def test_a_gain_of_five_percent_is_found_on_a_gpu() -> None:
    rng, experiments = random.Random(2), 300
    found = [record(rng, 0.004, 1.05) for _ in range(experiments)]
    faster = sum(ratios[EAGER].standing is Standing.FASTER for ratios, _ in found)
    assert faster >= 0.97 * experiments


def test_a_large_difference_ends_a_timing_after_two_rounds() -> None:
    rng = random.Random(3)
    for speedup in (0.5, 2.0):
        rounds = [record(rng, 0.004, speedup)[1] for _ in range(100)]
        assert rounds.count(CLEAR_ROUNDS) >= 98


def test_a_gain_below_the_clear_one_takes_the_planned_looks() -> None:
    rng = random.Random(5)
    rounds = [record(rng, 0.004, 1 + CLEAR / 2)[1] for _ in range(100)]
    assert set(rounds) <= set(LOOKS.rounds)


def test_limits_after_two_rounds_cover_the_true_speedup() -> None:
    rng, experiments = random.Random(6), 2000
    found = [record(rng, 0.004, 1.5, (EAGER,)) for _ in range(experiments)]
    assert sum(rounds == CLEAR_ROUNDS for _, rounds in found) >= 0.99 * experiments
    missed = sum(not (r[EAGER].low <= 1.5 <= r[EAGER].high) for r, _ in found)
    assert missed <= 0.02 * experiments


def test_rounds_that_disagree_are_not_clear() -> None:
    fast = taken({EAGER: 130.0, CANDIDATE: 100.0})
    delayed = taken({EAGER: 130.0 * math.exp(AGREEING * 1.1), CANDIDATE: 100.0})
    for rounds, clear in (([fast, fast], True), ([fast, delayed], False), ([fast], False)):
        found = ratios_of(rounds, (EAGER,))
        assert is_clear(rounds, found, Device.CUDA) == clear
        assert not is_clear(rounds, found, Device.CPU), "its scatter is not known"


def test_a_far_slower_baseline_that_scatters_ends_a_timing_after_two_rounds() -> None:
    """L3/39 (H200): eager took 14 times the candidate's time, and its rounds differed by a few
    percent, so a record timing had four rounds of 7 s."""
    rng, far = random.Random(7), 14.0
    found = [record(rng, 0.05, far) for _ in range(200)]
    assert sum(rounds == CLEAR_ROUNDS for _, rounds in found) >= 0.9 * len(found)
    missed = sum(not (r[EAGER].low <= far <= r[EAGER].high) for r, _ in found)
    assert missed <= 0.02 * len(found)


def test_rounds_agree_within_a_share_of_a_large_gain_and_its_limits_become_wide() -> None:
    gain = 2.0
    for apart, clear in ((0.9 * AGREEING_SHARE * gain, True), (1.1 * AGREEING_SHARE * gain, False)):
        other = taken({EAGER: 100.0 * math.exp(gain + apart), CANDIDATE: 100.0})
        rounds = [taken({EAGER: 100.0 * math.exp(gain), CANDIDATE: 100.0}), other]
        found = ratios_of(rounds, (EAGER,))
        assert is_clear(rounds, found, Device.CUDA) == clear
        assert math.log(found[EAGER].value / found[EAGER].low) > 2 * SCATTERED
    near = [taken({EAGER: 120.0, CANDIDATE: 100.0}), taken({EAGER: 124.0, CANDIDATE: 100.0})]
    assert not is_clear(near, ratios_of(near, (EAGER,)), Device.CUDA)


@pytest.mark.slow
@pytest.mark.parametrize("between", [0.1, 0.4])
def test_the_share_makes_no_noise_a_gain(between: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def called_faster() -> int:
        found = (record(random.Random(n), between, 1.0, (EAGER,))[0] for n in range(experiments))
        return sum(ratios[EAGER].standing is Standing.FASTER for ratios in found)

    experiments = 3000
    with_share = called_faster()
    monkeypatch.setattr(timing_rounds, "AGREEING_SHARE", 0.0)
    monkeypatch.setattr(timing_rounds, "SCATTERED", 0.0)
    assert with_share <= called_faster() + 0.002 * experiments


def rungs_alone(
    rng: random.Random, between: float, speedups: dict[str, float]
) -> tuple[dict[str, Ratio], int]:
    """Return the ratios of eager over rungs timed without a candidate, and the number of rounds."""
    rounds: list[Round] = []
    while True:
        spread = between / math.sqrt(2)
        arms = {EAGER: 100.0} | {name: 100.0 / speedup for name, speedup in speedups.items()}
        rounds.append(taken({n: t * math.exp(rng.gauss(0, spread)) for n, t in arms.items()}))
        found = {n: ratio(rounds, EAGER, n, Effort.RECORD, Device.CUDA) for n in speedups}
        if len(rounds) >= CLEAR_ROUNDS and is_decided(rounds, found, Device.CUDA, alone=True):
            return found, len(rounds)


def test_rungs_alone_take_two_rounds_if_none_gains_or_those_that_do_gain_clearly() -> None:
    """L1/5, a scale (H200): eager and two rungs of its speed took 20 s, at most six rounds."""
    rng = random.Random(8)
    for speedups in ({COMPILE: 1.002, "tuned": 0.5}, {COMPILE: 2.0, "tuned": 0.99}):
        rounds = [rungs_alone(rng, 0.004, speedups)[1] for _ in range(100)]
        assert rounds.count(CLEAR_ROUNDS) >= 95
    rounds = [rungs_alone(rng, 0.004, {COMPILE: 2.0, "tuned": 1.04})[1] for _ in range(100)]
    assert sum(n in LOOKS.rounds for n in rounds) >= 95, "a small gain takes the planned looks"


@pytest.mark.slow
@pytest.mark.parametrize("between", BETWEEN)
def test_an_equal_rung_is_called_faster_at_most_once_in_a_hundred(between: float) -> None:
    rng, experiments = random.Random(9), 3000
    found = (rungs_alone(rng, between, {COMPILE: 1.0})[0][COMPILE] for _ in range(experiments))
    called = sum(ratio.standing is Standing.FASTER for ratio in found)
    assert called <= experiments * 0.01 + 3 * math.sqrt(experiments * 0.01)


def test_one_baseline_within_the_margin_keeps_a_timing_going() -> None:
    near = taken({EAGER: 200.0, COMPILE: 100.0 * (1 + CLEAR * 0.9), CANDIDATE: 100.0})
    assert not is_clear([near] * 2, ratios_of([near] * 2), Device.CUDA)


def test_a_loser_with_wide_limits_ends_at_the_first_look() -> None:
    rng = random.Random(4)
    rounds = [record(rng, 0.1, 0.6)[1] for _ in range(100)]
    assert sum(n <= LOOKS.rounds[0] for n in rounds) >= 98


def test_hopeless_needs_a_clear_loss_in_every_round() -> None:
    loses = taken({EAGER: 100.0, COMPILE: 50.0, CANDIDATE: 50.0 * math.exp(HOPELESS) + 0.1})
    level = taken({EAGER: 100.0, COMPILE: 50.0, CANDIDATE: 50.0})
    names = (EAGER, COMPILE)
    assert is_hopeless([loses] * 3, names, Device.CUDA)
    assert not is_hopeless([loses, loses, level], names, Device.CUDA)
    assert not is_hopeless([loses] * 3, (EAGER,), Device.CUDA)


def arms(**more: float) -> Round:
    return taken({EAGER: 200.0, COMPILE: 150.0, CANDIDATE: 95.0} | more)


SLOW = 100.0 * (1 + HOPELESS_RUNG) * 1.05


def left(found: Round, times: dict[str, list[float]]) -> tuple[str, ...]:
    names = [name for name in found.counted if name != CANDIDATE]
    return hopeless_rungs(found, names, Device.CUDA, times)


def test_a_rung_that_was_slower_in_every_timing_leaves() -> None:
    found = arms(fast=100.0, slow=SLOW)
    assert left(found, {"slow": [SLOW * 1e-6] * 2, "fast": [1e-4] * 2}) == ("slow",)


def test_a_rung_that_was_delayed_in_one_timing_stays() -> None:
    found = arms(fast=100.0, slow=SLOW)
    assert left(found, {"slow": [99e-6, SLOW * 1e-6]}) == (), "it may be the best rung"
    assert left(found, {"slow": [SLOW * 1e-6]}) == (), "one timing may have been delayed"
    assert left(found, {}) == ()


def test_a_far_slower_rung_leaves_after_one_timing_only_if_its_calls_are_long() -> None:
    """L1/61 (H200): three rungs of 9 ms were opened again for each round; the best took 2.6 ms."""
    for share, factor, expected in ((1.1, 1.05, ("slow",)), (0.9, 1.05, ()), (1.1, 0.95, ())):
        best = share * LONG_CALL_S * 1e6
        far = best * FAR * factor
        names = {EAGER: 2 * far, COMPILE: 2 * far, CANDIDATE: 0.95 * best}
        found = arms(**names, best=best, slow=far)
        assert left(found, {"slow": [far * 1e-6]}) == expected


def test_rungs_within_the_margin_and_the_named_ones_stay() -> None:
    near = 100.0 * (1 + HOPELESS_RUNG) * 0.98
    found = arms(fast=100.0, near=near)
    times = {name: [t[0]] * 3 for name, t in found.counted.items()}
    assert left(found, times) == (), "eager and torch.compile are in every score"


def test_only_the_fastest_rung_stays_once_the_candidate_beats_it_clearly() -> None:
    found = arms(fast=150.0 - 1, near=150.0 - 0.5)
    times = {name: [t[0]] * 2 for name, t in found.counted.items()}
    assert left(found, times) == ("near",)
    assert left(found, times | {"near": [1e-4, 150e-6]}) == (), "it was the fastest before"
    assert left(found, times | {"near": times["near"][:1]}) == (), "it was timed once"
    close = arms(fast=95.0 * 1.05, near=95.0 * 1.06)
    times = {name: [t[0]] * 2 for name, t in close.counted.items()}
    assert left(close, times) == (), "the candidate is not clearly faster"


def test_one_fast_round_of_a_rung_removes_no_rung_that_is_usually_faster() -> None:
    found = taken({EAGER: 300.0, COMPILE: 200.0, "varies": 80.0, "steady": 90.0, CANDIDATE: 50.0})
    times = {"varies": [120e-6, 120e-6, 80e-6], "steady": [90e-6] * 3}
    assert left(found, times) == ()
