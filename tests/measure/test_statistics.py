"""Coverage of the intervals, simulated with drift, spikes and memory layout."""

from __future__ import annotations

import random

import pytest

from cuagent.measure.statistics import (
    Looks,
    log_ratios,
    median_interval,
    over_groups,
    over_rounds,
    pooled,
    quietest,
    steady,
    t_quantile,
)
from cuagent.timing import Ratio, Standing

EXPERIMENTS = 400


def round_of_pairs(rng: random.Random, speedup: float, pairs: int = 12) -> list[float]:
    """Return the log ratios of one round: drift 1 % sd, AR(1) noise, 2 % spikes of 30 %, layout."""
    drift, memory = rng.gauss(0, 0.01), 0.0
    layout = rng.gauss(0, 0.004)
    baseline, candidate = [], []
    for k in range(pairs):
        times = {}
        for arm in rng.sample(["baseline", "candidate"], 2):
            memory = 0.97 * memory + rng.gauss(0, 0.004 * (1 - 0.97**2) ** 0.5)
            spike = 0.3 if rng.random() < 0.02 else 0.0
            times[arm] = 1 + drift * k / pairs + memory + spike + rng.gauss(0, 0.003)
        baseline.append(times["baseline"] * speedup * (1 + layout))
        candidate.append(times["candidate"])
    return log_ratios(baseline, candidate)


def simulate(seed: int, speedup: float, rounds: int = 5) -> list[Ratio]:
    rng = random.Random(seed)
    return [
        over_rounds([round_of_pairs(rng, speedup) for _ in range(rounds)])
        for _ in range(EXPERIMENTS)
    ]


@pytest.mark.parametrize(
    ("df", "tabled"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (7, 2.3646), (30, 2.0423)]
)
def test_t_quantile_equals_published_tables(df: int, tabled: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(tabled, abs=1e-4)


def test_interval_excludes_equality_at_the_nominal_rate() -> None:
    outside = sum(not r.low <= 1 <= r.high for r in simulate(1, speedup=1.0))
    # 20 expected of 400; 35 would be more than three standard deviations off
    assert 5 <= outside <= 35


def test_equal_arms_are_almost_always_inconclusive() -> None:
    called = sum(r.standing is not Standing.INCONCLUSIVE for r in simulate(2, speedup=1.0))
    assert called <= EXPERIMENTS * 0.01


def test_interval_covers_and_detects_a_three_percent_gain() -> None:
    ratios = simulate(3, speedup=1.03)
    covered = sum(r.low <= 1.03 <= r.high for r in ratios)
    found = sum(r.standing is Standing.FASTER for r in ratios)
    assert covered >= EXPERIMENTS * 0.91
    assert found >= EXPERIMENTS * 0.95


def test_slower_candidate_has_standing_slower() -> None:
    assert {r.standing for r in simulate(4, speedup=0.9)[:20]} == {Standing.SLOWER}


def test_pairs_within_a_round_are_not_replicates() -> None:
    """Show why rounds are the replicates: the pairs of one round share the effect of its layout."""
    rng = random.Random(5)
    pooled = [median_interval(round_of_pairs(rng, 1.0, pairs=60)) for _ in range(200)]
    wrong = sum(not low <= 0 <= high for low, high in pooled)
    single = [over_rounds([round_of_pairs(rng, 1.0, pairs=60)], between=0.005) for _ in range(200)]
    assert wrong > 60
    assert sum(not r.low <= 1 <= r.high for r in single) <= 14


def test_median_interval_keeps_its_confidence_on_skewed_samples() -> None:
    rng = random.Random(6)
    hits = 0
    for _ in range(1000):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(15)])
        hits += low <= 0.6931 <= high
    assert hits >= 940


def test_split_alpha_keeps_the_error_rate_and_peeking_does_not() -> None:
    looks = Looks((3, 4, 6, 8))
    rng = random.Random(7)
    peeked = promised = 0
    for _ in range(EXPERIMENTS):
        rounds = [round_of_pairs(rng, 1.0) for _ in range(looks.rounds[-1])]
        naive = [over_rounds(rounds[:n]) for n in looks.rounds]
        split = [over_rounds(rounds[:n], looks.per_look) for n in looks.rounds]
        peeked += any(not r.low <= 1 <= r.high for r in naive)
        promised += any(not r.low <= 1 <= r.high for r in split)
    assert promised <= EXPERIMENTS * 0.08
    assert peeked > promised


def test_steady_discards_blocks_by_clock_and_throttling_only() -> None:
    kept = steady([1980, 1400, 1980, 0], [False, False, True, False], nominal=1980)
    assert kept == [True, False, False, True]


def test_over_rounds_raises_without_pairs() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        over_rounds([[]])


def busy_machine(rng: random.Random, speedup: float) -> Ratio:
    """Simulate a quick timing on a busy CPU: a third of the blocks takes up to ten times as long.

    Processes differ by 2 %, as eight timings of twins have shown.
    """
    apart = [rng.gauss(0, 0.02) for _ in range(8)]
    layout = rng.gauss(0, 0.02)
    arms = []
    for level in (speedup * (1 + layout), 1.0):
        blocks = [
            level * (1 + abs(rng.gauss(0, 0.002)) + (rng.random() < 0.33) * 9 * rng.random())
            for _ in range(40)
        ]
        arms.append(quietest(blocks, 5))
    between, df = pooled(apart, 0.03, 4)
    return over_groups(log_ratios(*arms), 0.99, between, df)


def test_busy_cpu_calls_equal_arms_different_at_most_once_in_a_hundred() -> None:
    rng = random.Random(5)
    called = sum(
        busy_machine(rng, 1.0).standing is not Standing.INCONCLUSIVE for _ in range(EXPERIMENTS)
    )
    assert called <= 4


def test_busy_cpu_detects_a_gain_of_a_third() -> None:
    rng = random.Random(6)
    found = sum(busy_machine(rng, 1.33).standing is Standing.FASTER for _ in range(EXPERIMENTS))
    assert found >= 0.95 * EXPERIMENTS


def test_quietest_returns_the_smallest_value_of_each_stretch() -> None:
    assert quietest([3.0, 1.0, 9.0, 5.0, 4.0, 4.5], 3) == [1.0, 5.0, 4.0]
    assert quietest([2.0], 5) == [2.0]
