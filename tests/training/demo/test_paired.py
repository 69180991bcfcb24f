"""Test statistics of paired seeds against slow definitions and known answers."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from cuagent.training.demo.paired import best_of, difference, t_interval


def test_best_of_k_is_mean_over_subsets() -> None:
    rewards = [-1.0, 1.0, 1.0, 3.0, -1.0, 2.0]
    for k in (1, 2, 4, 6):
        slow = fmean(max(chosen) for chosen in combinations(rewards, k))
        assert best_of({"t": rewards}, k)["t"] == pytest.approx(slow)
    assert best_of({"t": rewards}, 8)["t"] == 3.0


def test_interval_covers_true_difference() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        noise = rng.normal(0.0, 0.3, (2, 3, 20))
        arm = [{str(t): 0.5 + x for t, x in enumerate(seed)} for seed in noise[0]]
        other = [{str(t): x for t, x in enumerate(seed)} for seed in noise[1]]
        found = difference(arm, other)
        held += found.low <= 0.5 <= found.high
    assert 88 <= held <= 100


def test_shared_variation_does_not_widen_interval() -> None:
    hard = {str(t): float(t) for t in range(10)}
    easier = {task: reward + 1.0 for task, reward in hard.items()}
    found = difference([easier, easier], [hard, hard])
    assert (found.mean, found.low, found.high, found.seeds) == (1.0, 1.0, 1.0, (1.0, 1.0))


def test_t_interval_of_known_values() -> None:
    assert t_interval([1.0]) == (None, None)
    low, high = t_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)
    many = [float(x) for x in range(41)]  # 40 degrees of freedom: t is 2.02108
    low, high = t_interval(many)
    assert high == pytest.approx(20 + 2.02108 * 11.97915 / 41**0.5, abs=1e-3)


def test_t_interval_holds_the_true_mean_of_three_seeds() -> None:
    """The bootstrap over three seeds that differ misses it far more often than in 5 %."""
    rng = np.random.default_rng(0)
    held = {"t": 0, "bootstrap": 0}
    for _ in range(200):
        seeds = rng.normal(0.0, 1.0, 3)
        arm = [{str(t): 0.5 + x + rng.normal(0, 0.1) for t in range(6)} for x in seeds]
        found = difference(arm, [{str(t): 0.0 for t in range(6)}] * 3)
        assert found.t_low is not None
        assert found.t_high is not None
        held["t"] += found.t_low <= 0.5 <= found.t_high
        held["bootstrap"] += found.low <= 0.5 <= found.high
    assert 180 <= held["t"] <= 198
    assert held["bootstrap"] < 170
