"""Compare arms over several seeds: paired differences on held-out tasks, with a confidence
interval.

Every seed plays the same held-out tasks with the policy of each arm, so arms are compared within
seed and task. Report the t-interval over the seeds' differences: seeds are few, and differ more
than tasks do. A bootstrap over seeds and tasks (seeds are drawn with replacement, and then tasks
for each of them) is too narrow with few seeds; older results have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, stdev

import numpy as np

from cuagent.training.data.segments import Episode

Table = Mapping[str, Sequence[float]]
"""Rewards of the episodes by task digest."""
DRAWS = 10_000
"""Number of bootstrap samples of a confidence interval."""
T = (
    12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814,
    2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596,
    2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841, 2.04523, 2.04227,
)  # fmt: skip
"""97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom."""
FASTER = 3.0
"""Milestone reward of a kernel that is faster than both eager and torch.compile."""


@dataclass(frozen=True)
class Difference:
    """One arm's figure minus another arm's, averaged over seeds and tasks."""

    mean: float
    low: float
    high: float
    """Upper limit of the 95 % bootstrap interval; `low` is the lower limit."""
    t_low: float | None
    t_high: float | None
    """Upper limit of the 95 % t-interval over the seeds; `t_low` is the lower limit. Both are None
    with one seed."""
    seeds: tuple[float, ...]
    """Difference of the two arms, averaged over the tasks, for each seed."""


def rewards_by_task(episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Return the episodes' rewards by task digest."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        found.setdefault(episode.task, []).append(episode.reward)
    return found


def mean_by_task(rewards: Table) -> dict[str, float]:
    """Return the mean reward of each task."""
    return {task: fmean(each) for task, each in rewards.items()}


def fast_share_by_task(rewards: Table) -> dict[str, float]:
    """Return, for each task, the share of episodes whose kernel is faster than torch.compile."""
    return {task: fmean(r >= FASTER for r in each) for task, each in rewards.items()}


def best_of(rewards: Table, k: int) -> dict[str, float]:
    """Return, for each task, the expected best reward among `k` of its episodes drawn without
    replacement.

    A task with fewer than `k` episodes gives the best of all. The i-th smallest of n rewards (from
    1) is the best of k in comb(i - 1, k - 1) of comb(n, k) draws.
    """
    out = {}
    for task, each in rewards.items():
        ranked, n = sorted(each), len(each)
        size = min(k, n)
        weights = [comb(i, size - 1) / comb(n, size) for i in range(n)]
        out[task] = sum(w * r for w, r in zip(weights, ranked, strict=True))
    return out


def difference(
    arm: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]], seed: int = 0
) -> Difference:
    """Return the mean difference `arm` minus `other`, with a bootstrap interval and a t-interval.

    Both arguments have one table (task to figure) for each seed, in the same order. `seed`: seed of
    the bootstrap.
    """
    tasks = sorted(arm[0])
    gaps = np.array(
        [[a[task] - b[task] for task in tasks] for a, b in zip(arm, other, strict=True)]
    )
    rng = np.random.default_rng(seed)
    seeds, count = gaps.shape
    drawn = rng.integers(seeds, size=(DRAWS, seeds, 1))
    chosen = rng.integers(count, size=(DRAWS, seeds, count))
    low, high = np.quantile(gaps[drawn, chosen].mean((1, 2)), [0.025, 0.975])
    each = tuple(float(g) for g in gaps.mean(1))
    t_low, t_high = t_interval(each)
    return Difference(float(gaps.mean()), float(low), float(high), t_low, t_high, each)


def t_interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % t-interval of the mean of a few values; (None, None) for one value."""
    freedom = len(values) - 1
    if freedom < 1:
        return None, None
    # Beyond 30 degrees of freedom Cornish and Fisher's expansion is right within 1e-4.
    t = T[freedom - 1] if freedom <= len(T) else 1.95996 + 2.37227 / freedom + 2.8225 / freedom**2
    half = t * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
