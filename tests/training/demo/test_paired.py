"""Test statistics of paired seeds against slow definitions and known answers."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from cuagent.training.demo.paired import best_of, difference


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
