"""Compute ratios and their intervals from paired samples. Pure functions, no clock and no torch.

A *round* is one set of fresh processes. Within it the arms are timed in interleaved pairs, and its
single statistic is the median of the log ratios. Variation between processes (addresses, memory
layout) affects all pairs of a round alike, so only rounds are replicates: the interval is Student's
over the medians of the rounds (Kalibera & Jones, "Rigorous benchmarking in reasonable time", ISMM
2013).

Not covered: how samples are taken (`timing/timer.py`).

Invariant: no rule here depends on which arm a sample belongs to, so none can favour an arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median, stdev

from cuagent.timing import Ratio


@dataclass(frozen=True)
class Looks:
    """Planned numbers of rounds ("looks") at which a timing may be tested, and the confidence of
    all tests together.

    Testing after every round until the answer pleases makes 24 % of A/A runs "significant" at a
    nominal 5 %. With looks fixed beforehand and alpha split evenly among them (Bonferroni) the
    confidence holds for all looks together.
    """

    rounds: tuple[int, ...]
    confidence: float = 0.95

    @property
    def per_look(self) -> float:
        """Return the confidence that the interval at each single look must have."""
        return 1 - (1 - self.confidence) / len(self.rounds)


def log_ratios(baseline: Sequence[float], candidate: Sequence[float]) -> list[float]:
    """Return log(baseline / candidate) for each pair of times; above 0 the candidate is faster."""
    return [math.log(b / c) for b, c in zip(baseline, candidate, strict=True)]


def over_rounds(
    rounds: Sequence[Sequence[float]], confidence: float = 0.95, between: float = 0.0
) -> Ratio:
    """Return the ratio and its interval, given the log ratios of the pairs of each round.

    With several rounds the interval is Student's over their medians. With one round it is the
    distribution-free interval of the median of its pairs, widened by `between`: the standard
    deviation of a log ratio from one set of processes to the next, which one round cannot show.
    Such an interval is feedback, not a claim. Raises ValueError without pairs.
    """
    medians = [median(pairs) for pairs in rounds if pairs]
    if not medians:
        raise ValueError("no pairs to compare")
    if len(medians) == 1:
        pairs = next(pairs for pairs in rounds if pairs)
        low, high = median_interval(pairs, confidence)
        extra = normal_quantile(0.5 + confidence / 2) * between
        centre = medians[0]
        return _ratio(centre, math.hypot(centre - low, extra), math.hypot(high - centre, extra))
    centre = sum(medians) / len(medians)
    error = stdev(medians) / math.sqrt(len(medians))
    half = t_quantile(0.5 + confidence / 2, len(medians) - 1) * error
    return _ratio(centre, half, half)


def over_few_rounds(
    rounds: Sequence[Sequence[float]], confidence: float, prior: float, weight: int
) -> Ratio:
    """Return the ratio and its interval from too few rounds for an estimate of their scatter alone.

    `prior` is the standard deviation between rounds that earlier timings of the same kind of device
    showed; it counts as much as `weight` further rounds. Student's interval over two rounds alone
    would be thirty times wider. Raises ValueError without pairs.
    """
    medians = [median(pairs) for pairs in rounds if pairs]
    if not medians:
        raise ValueError("no pairs to compare")
    centre = sum(medians) / len(medians)
    total = weight * prior**2 + sum((value - centre) ** 2 for value in medians)
    df = weight + len(medians) - 1
    error = math.sqrt(total / df / len(medians))
    half = t_quantile(0.5 + confidence / 2, df) * error
    return _ratio(centre, half, half)


def _ratio(centre: float, below: float, above: float) -> Ratio:
    return Ratio(math.exp(centre), math.exp(centre - below), math.exp(centre + above))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the median without assuming a distribution (binomial sign
    test).

    It is the narrowest symmetric pair of order statistics with a coverage, `1 - 2 P(Bin(n, 1/2) <
    k)`, of at least `confidence`, or the whole range if n is too small.
    """
    ordered = sorted(values)
    n = len(ordered)
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 1 - 2 * tail < confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def quantile(values: Sequence[float], p: float) -> float:
    """Return the sorted value nearest to the quantile `p` in 0 to 1. Raises IndexError without
    values."""
    return sorted(values)[round(p * (len(values) - 1))]


def quietest(values: Sequence[float], groups: int) -> list[float]:
    """Split the values into `groups` consecutive parts of nearly equal length; return each part's
    smallest.

    Other users of a processor only lengthen a block, some by a factor of thirty. The shortest block
    shows the time that the code takes.
    """
    edges = [round(len(values) * k / groups) for k in range(groups + 1)]
    return [min(values[a:b]) for a, b in pairwise(edges) if a < b]


def over_groups(logs: Sequence[float], confidence: float, between: float, df: int) -> Ratio:
    """Return the ratio and its interval, given the log ratios of consecutive parts of one round
    (batch means).

    Neighbouring blocks share the load of the machine, so they are not independent; parts nearly
    are. The interval is Student's with the standard error of a median: 1.2533 times that of the
    mean. It is widened by `between`, the standard deviation from one set of processes to the next,
    estimated with `df` degrees of freedom.
    """
    centre = median(logs)
    error = 1.2533 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else abs(centre)
    p = 0.5 + confidence / 2
    within = t_quantile(p, max(1, len(logs) - 1)) * error
    half = math.hypot(within, t_quantile(p, df) * between)
    return _ratio(centre, half, half)


def pooled(deviations: Sequence[float], prior: float, weight: int) -> tuple[float, int]:
    """Return the standard deviation about zero of the given deviations, and its degrees of freedom.

    `prior` is a standard deviation assumed beforehand; it counts as much as `weight` values.
    """
    total = weight * prior**2 + sum(value**2 for value in deviations)
    df = weight + len(deviations)
    return math.sqrt(total / df), df


def steady(clocks: Sequence[float], throttled: Sequence[bool], nominal: float) -> list[bool]:
    """Return for each block True if it is kept. The device's state decides, never the block's time.

    A block is discarded if the device throttled, or if its clock (any unit; 0 is unknown) was below
    75 % of `nominal` (the rule of nvbench).
    """
    return [
        not hot and (clock == 0 or nominal == 0 or clock >= 0.75 * nominal)
        for clock, hot in zip(clocks, throttled, strict=True)
    ]


def normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


def t_quantile(p: float, df: int) -> float:
    """Return the quantile `p` of Student's t distribution with `df` degrees of freedom, by
    bisection.

    Raises ValueError unless 1/2 <= p < 1 and df >= 1.
    """
    if not (0.5 <= p < 1 and df >= 1):
        raise ValueError(f"no t quantile for p={p}, df={df}")
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, df: int) -> float:
    """Return the distribution function of Student's t with `df` degrees of freedom, for t >= 0.

    Finite sums: Abramowitz & Stegun 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(df))
    sine, square = math.sin(theta), math.cos(theta) ** 2
    odd = df % 2 == 1
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for k in range(2 if odd else 1, df, 2):
        total += term
        term *= square * k / (k + 1)
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return (1 + inside) / 2
