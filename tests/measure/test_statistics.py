"""Coverage of the intervals, simulated with drift, spikes and memory layout."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest

from cuagent.measure.statistics import (
    Looks,
    log_ratios,
    median_interval,
    normal_quantile,
    over_groups,
    over_rounds,
    pooled,
    quantile,
    quietest,
    steady,
    t_cdf,
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


def logs_of(ratio: Ratio) -> tuple[float, float, float]:
    """Centre, lower and upper half width of an interval, in logarithms."""
    centre = math.log(ratio.value)
    return centre, centre - math.log(ratio.low), math.log(ratio.high) - centre


def test_interval_over_rounds_is_students_over_the_medians() -> None:
    ratio = over_rounds([[0.1, 0.2, 0.9], [], [0.4], [0.2, 0.4]])
    error = stdev([0.2, 0.4, 0.3]) / math.sqrt(3)
    assert logs_of(ratio) == pytest.approx((0.3, 4.302653 * error, 4.302653 * error), rel=1e-5)
    ratio = over_rounds([[0.1], [0.3]], 0.9)
    assert logs_of(ratio) == pytest.approx((0.2, 6.313752 * 0.1, 6.313752 * 0.1), rel=1e-5)


def test_interval_of_one_round_is_widened_by_the_spread_between_processes() -> None:
    pairs = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.9]
    ratio = over_rounds([[], pairs], between=0.2)
    extra = 1.959964 * 0.2
    expected = (0.4, math.hypot(0.3, extra), math.hypot(0.5, extra))
    assert logs_of(ratio) == pytest.approx(expected, rel=1e-5)
    assert logs_of(over_rounds([pairs])) == pytest.approx((0.4, 0.3, 0.5))
    assert logs_of(over_rounds([pairs], 0.5)) == pytest.approx((0.4, 0.1, 0.2))


def test_interval_over_groups_has_the_standard_error_of_a_median() -> None:
    logs = [0.1, 0.2, 0.4]
    within = 4.302653 * 1.2533 * stdev(logs) / math.sqrt(3)
    half = math.hypot(within, 2.364624 * 0.3)
    ratio = over_groups(logs, 0.95, 0.3, 7)
    assert logs_of(ratio) == pytest.approx((0.2, half, half), rel=1e-5)
    within = 6.313752 * 1.2533 * stdev([0.1, 0.3]) / math.sqrt(2)
    ratio = over_groups([0.1, 0.3], 0.9, 0.0, 7)
    assert logs_of(ratio) == pytest.approx((0.2, within, within), rel=1e-5)


def test_one_group_has_an_error_as_large_as_its_effect() -> None:
    half = 12.706205 * 0.2
    assert logs_of(over_groups([-0.2], 0.95, 0.0, 4)) == pytest.approx((-0.2, half, half), rel=1e-5)


@pytest.mark.parametrize(
    ("count", "confidence", "low", "high"),
    [
        (1, 0.95, 1, 1),
        (2, 0.95, 1, 2),
        (5, 0.95, 1, 5),  # the whole range covers only 93.75 %
        (6, 0.95, 1, 6),
        (9, 0.95, 2, 8),
        (9, 1 - 20 / 512, 2, 8),  # the exact coverage of this pair
        (9, 1 - 19 / 512, 1, 9),
        (15, 0.95, 4, 12),
        (4, 0.0, 2, 3),
        (5, 0.0, 2, 4),
        (1000, 0.95, 469, 532),
    ],
)
def test_median_interval_equals_the_tables_of_the_sign_test(
    count: int, confidence: float, low: int, high: int
) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert median_interval(values, confidence) == (low, high)
    if confidence == 0.95:
        assert median_interval(values) == (low, high)


def test_quantile_is_the_nearest_order_statistic() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, p) for p in (0.0, 0.3, 0.5, 0.7, 1.0)] == [1, 2, 3, 4, 5]
    with pytest.raises(IndexError):
        quantile([], 0.5)


def test_pooled_deviation_counts_the_prior_as_values() -> None:
    deviation, known = pooled([0.1, -0.3], 0.2, 4)
    assert deviation == pytest.approx(math.sqrt((4 * 0.04 + 0.01 + 0.09) / 6))
    assert known == 6
    assert pooled([], 0.2, 4) == (pytest.approx(0.2), 4)


def test_clock_of_75_percent_is_steady_and_an_unknown_one_too() -> None:
    assert steady([750.0, 749.9, 0.0], [False] * 3, nominal=1000) == [True, False, True]
    assert steady([1.0, 1.0], [False, True], nominal=0) == [True, False]


def test_normal_quantile_equals_the_table() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "df", "tabled"),
    [
        (0.75, 1, 1.0),
        (0.999, 1, 318.30883898555044),
        (0.975, 2, 4.302652729749464),
        (0.975, 3, 3.182446305284263),
        (0.975, 4, 2.7764451051977987),
        (0.975, 5, 2.570581835636314),
        (0.975, 6, 2.446911851144969),
        (0.5, 3, 0.0),
    ],
)
def test_t_quantile_and_its_inverse_are_exact(p: float, df: int, tabled: float) -> None:
    assert t_quantile(p, df) == pytest.approx(tabled, rel=1e-10, abs=1e-15)
    assert t_cdf(tabled, df) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(("p", "df"), [(0.49, 3), (1.0, 3), (0.9, 0)])
def test_t_quantile_refuses_other_arguments(p: float, df: int) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(p, df)


def test_confidence_is_divided_among_the_looks() -> None:
    assert Looks((3, 4, 6, 8)).per_look == pytest.approx(0.9875)
    assert Looks((5,), 0.9).per_look == pytest.approx(0.9)


def test_log_ratio_is_positive_for_a_faster_candidate() -> None:
    assert log_ratios([2.0, 1.0], [1.0, 4.0]) == pytest.approx([math.log(2), -math.log(4)])
    with pytest.raises(ValueError, match="zip"):
        log_ratios([1.0, 2.0], [1.0])


def test_groups_have_equal_lengths_to_within_one() -> None:
    assert quietest([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 2) == [4.0, 1.0]
    assert quietest([], 3) == []


def test_interval_near_one_is_equal_and_a_wide_one_is_inconclusive() -> None:
    near, above, wide = Ratio(1.009, 1.007, 1.0099), Ratio(1.01, 1.005, 1.02), Ratio(1.0, 0.9, 1.1)
    assert [r.is_equal for r in (near, above, wide)] == [True, False, False]
    assert near.doubt == " (equal within 1%)"
    assert above.doubt == wide.doubt == " (inconclusive)"
    assert Ratio(2.0, 1.9, 2.1).doubt == Ratio(0.5, 0.4, 0.6).doubt == ""
