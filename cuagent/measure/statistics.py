"""From paired samples to a ratio with its interval. Pure functions, no clock and no torch.

A *round* is one set of fresh processes; within it the arms are timed in interleaved pairs, and its
one statistic is the median of the log ratios. What varies from process to process (addresses,
memory layout) varies for all pairs of a round alike, so only rounds are replicates: the interval is
Student's, over the medians of the rounds (Kalibera & Jones, "Rigorous benchmarking in reasonable
time", ISMM 2013). Not covered: where the samples come from (`protocol.py`).

Invariant: no rule here looks at which arm a sample belongs to, so none can favour one.
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
    """When the data may be looked at: after each of `rounds`, and the confidence kept over all.

    Looking after every round until the answer pleases makes 24 % of A/A runs "significant" at a
    nominal 5 %. With the looks fixed before and alpha split evenly among them (Bonferroni) the
    promise holds whatever was seen when.
    """

    rounds: tuple[int, ...]
    confidence: float = 0.95

    @property
    def per_look(self) -> float:
        """Confidence of the interval at each look."""
        return 1 - (1 - self.confidence) / len(self.rounds)


def log_ratios(baseline: Sequence[float], candidate: Sequence[float]) -> list[float]:
    """Log of baseline over candidate for each pair; seconds in, above 0 is faster."""
    return [math.log(b / c) for b, c in zip(baseline, candidate, strict=True)]


def over_rounds(
    rounds: Sequence[Sequence[float]], confidence: float = 0.95, between: float = 0.0
) -> Ratio:
    """Ratio and interval from the log ratios of each round's pairs.

    With one round only its own pairs can be asked: the distribution-free interval of the median,
    widened by `between`, the standard deviation of a log ratio from one set of processes to the
    next, which a single round cannot show. That is feedback, not a claim. Raises ValueError where
    there is nothing.
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


def _ratio(centre: float, below: float, above: float) -> Ratio:
    return Ratio(math.exp(centre), math.exp(centre - below), math.exp(centre + above))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of the median: order statistics by the binomial sign test.

    The narrowest symmetric pair of order statistics whose coverage, `1 - 2 P(Bin(n, 1/2) < k)`,
    is at least `confidence`; the whole range where n is too small to reach it.
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
    """The order statistic nearest to `p` of the way up. Raises IndexError on none."""
    return sorted(values)[round(p * (len(values) - 1))]


def quietest(values: Sequence[float], groups: int) -> list[float]:
    """The smallest value of each of `groups` consecutive stretches, equally long to within one.

    Other users of a processor only ever lengthen a block, some by a factor of thirty: what the
    quietest one took is what the code takes.
    """
    edges = [round(len(values) * k / groups) for k in range(groups + 1)]
    return [min(values[a:b]) for a, b in pairwise(edges) if a < b]


def over_groups(logs: Sequence[float], confidence: float, between: float, df: int) -> Ratio:
    """Ratio and interval from log ratios of consecutive stretches of one round (batch means).

    Neighbouring blocks are alike in what else the machine does, so they are no replicates, and
    stretches nearly are. Student's interval with the standard error of a median (1.2533 times that
    of the mean), widened by `between`, the standard deviation from one set of processes to the
    next, which was estimated with `known` degrees of freedom.
    """
    centre = median(logs)
    error = 1.2533 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else abs(centre)
    p = 0.5 + confidence / 2
    within = t_quantile(p, max(1, len(logs) - 1)) * error
    half = math.hypot(within, t_quantile(p, df) * between)
    return _ratio(centre, half, half)


def pooled(deviations: Sequence[float], prior: float, weight: int) -> tuple[float, int]:
    """Standard deviation of values about zero, and its degrees of freedom.

    `prior` counts as `weight` values: what is believed before anything was seen.
    """
    total = weight * prior**2 + sum(value**2 for value in deviations)
    df = weight + len(deviations)
    return math.sqrt(total / df), df


def steady(clocks: Sequence[float], throttled: Sequence[bool], nominal: float) -> list[bool]:
    """Which blocks to keep, by what the device says of itself and never by how long they took.

    A block goes where the device throttled or its clock (any unit; 0 is unknown) stood under 75 %
    of `nominal` (the rule of nvbench).
    """
    return [
        not hot and (clock == 0 or nominal == 0 or clock >= 0.75 * nominal)
        for clock, hot in zip(clocks, throttled, strict=True)
    ]


def normal_quantile(p: float) -> float:
    """Inverse of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


def t_quantile(p: float, df: int) -> float:
    """Inverse of Student's t distribution, p >= 1/2 and df a whole number, by bisection."""
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
    """Student's distribution for t >= 0: finite sums, Abramowitz & Stegun 26.7.3 and 26.7.4."""
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
