"""Compare arms over several seeds: paired differences on held-out tasks, with a confidence
interval.

Every seed plays the same held-out tasks with the policy of each arm, so arms are compared within
seed and task. The interval is a bootstrap over both: seeds are drawn with replacement, and then
tasks for each of them. With three seeds it is coarse, so each seed's difference is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

import numpy as np

from cuagent.training.data.segments import Episode

Table = Mapping[str, Sequence[float]]
"""Rewards of the episodes by task digest."""
DRAWS = 10_000
"""Number of bootstrap samples."""
FASTER = 3.0
"""Milestone reward of a kernel that is faster than eager and torch.compile."""


@dataclass(frozen=True)
class Difference:
    """One arm's figure minus the other's, averaged over seeds and tasks."""

    mean: float
    low: float
    high: float
    """Limits of the 95 % interval."""
    seeds: tuple[float, ...]
    """Mean difference of each seed."""


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
    """Return the share of kernels faster than torch.compile, for each task."""
    return {task: fmean(r >= FASTER for r in each) for task, each in rewards.items()}


def best_of(rewards: Table, k: int) -> dict[str, float]:
    """Return, by task, the expected best reward of `k` episodes drawn without replacement (or of
    all).

    The i-th smallest of n (from 1) is the best of k in comb(i - 1, k - 1) of comb(n, k) draws.
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
    """Return `arm` minus `other`, with a bootstrap interval.

    Each is a table (figure by task) for every seed, in the same order. `seed` is the bootstrap's.
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
    return Difference(float(gaps.mean()), float(low), float(high), each)
