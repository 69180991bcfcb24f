"""Test GAE against the formula, and against inserted observation tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuagent.training.advantage import (
    actions,
    advantages_and_returns,
    gae,
    length_adaptive,
    monte_carlo,
    naive_advantages,
    whiten,
)


def by_the_formula(values: list[float], reward: float, lam: float) -> list[float]:
    """Return A_t = sum_k lam^k delta_{t+k}, each term from its definition; O(n^2)."""
    n = len(values)
    following = [*values[1:], 0.0]
    rewards = [0.0] * (n - 1) + [reward]
    delta = [rewards[t] + following[t] - values[t] for t in range(n)]
    return [sum(lam ** (k - t) * delta[k] for k in range(t, n)) for t in range(n)]


def row(tokens: list[tuple[bool, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks and values of tokens given as (sampled, value), after a prompt of one token."""
    action = torch.tensor([[False] + [a for a, _ in tokens]])
    values = torch.tensor([[0.7] + [v for _, v in tokens]], dtype=torch.float64)
    return action, values


floats = st.floats(-3, 3, width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(floats, min_size=1, max_size=12),
    reward=st.sampled_from([-1.0, 1.0, 2.0, 3.0]),
    lam=st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]),
    inserted=st.lists(st.tuples(st.integers(0, 12), floats), max_size=10),
)
def test_gae_matches_formula_with_observations_inserted(
    values: list[float], reward: float, lam: float, inserted: list[tuple[int, float]]
) -> None:
    tokens = [(True, v) for v in values]
    for at, value in inserted:  # also at the end: an episode may end with an observation
        tokens.insert(min(at, len(tokens)), (False, value))
    action, v = row(tokens)
    advantages, returns = advantages_and_returns(
        v, action, torch.tensor([0]), torch.tensor([reward]), lam, lam
    )
    wanted = torch.tensor(by_the_formula(values, reward, lam), dtype=torch.float64)
    torch.testing.assert_close(advantages[action], wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        returns[action], wanted + torch.tensor(values, dtype=torch.float64), atol=1e-6, rtol=1e-6
    )
    assert (advantages[~action] == 0).all()


def test_terminal_reward_reaches_last_action_before_observations() -> None:
    action, values = row([(True, 0.5), (False, 9.0), (True, 0.5), (False, 9.0), (False, 9.0)])
    advantages, _ = advantages_and_returns(
        values, action, torch.tensor([0]), torch.tensor([3.0]), 0.0, 1.0
    )
    assert advantages[0].tolist() == [0, 0, 0, 2.5, 0, 0]


def test_advantages_of_batch_equal_those_of_single_episodes() -> None:
    values = torch.randn(3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    action = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0], [0] + [1] * 8])
    action = action.bool()
    rewards = torch.tensor([1.0, -1.0, 3.0])
    together, _ = advantages_and_returns(values, action, torch.arange(3), rewards, 0.9, 1.0)
    for i in range(3):
        alone, _ = advantages_and_returns(
            values[i : i + 1], action[i : i + 1], torch.tensor([0]), rewards[i : i + 1], 0.9, 1.0
        )
        torch.testing.assert_close(together[i : i + 1], alone)


def test_context_windows_of_episode_form_one_trajectory() -> None:
    values = torch.tensor([[9.0, 0.1, 0.2], [9.0, 9.0, 0.3]], dtype=torch.float64)
    action = torch.tensor([[False, True, True], [False, False, True]])
    advantages, _ = advantages_and_returns(
        values, action, torch.tensor([0, 0]), torch.tensor([2.0]), 0.8, 1.0
    )
    wanted = torch.tensor(by_the_formula([0.1, 0.2, 0.3], 2.0, 0.8), dtype=torch.float64)
    torch.testing.assert_close(advantages[action], wanted)


def test_returns_with_lambda_one_are_monte_carlo() -> None:
    lengths = torch.tensor([3, 1])
    values = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
    rewards = torch.tensor([2.0, -1.0])
    returns = values * (torch.arange(3) < lengths[:, None]) + gae(values, rewards, lengths, 1.0)
    torch.testing.assert_close(returns, monte_carlo(rewards, lengths))


def test_naive_gae_differs_from_correct_gae() -> None:
    action, values = row([(True, 0.5), (False, 0.1), (False, 0.1), (True, 0.5), (False, 0.2)])
    right, _ = advantages_and_returns(
        values, action, torch.tensor([0]), torch.tensor([1.0]), 0.95, 1.0
    )
    wrong = naive_advantages(values, torch.ones_like(action), action, torch.tensor([1.0]), 0.95)
    assert (right - wrong)[action].abs().max() > 0.05


def test_length_adaptive_lambda_values() -> None:
    lam = length_adaptive(torch.tensor([1, 100, 1000, 100000]), alpha=0.05)
    torch.testing.assert_close(lam, torch.tensor([0.9, 0.9, 0.98, 0.9998]))


def test_actions_refuses_episode_without_actions() -> None:
    with pytest.raises(ValueError, match="episode 1 of the batch"):
        actions(torch.tensor([[False, True], [False, False]]), torch.tensor([0, 1]))


def test_whitening_uses_mask_and_agrees_over_processes() -> None:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=g) * 5 + 1000
    mask = torch.rand(4, 6, generator=g) < 0.5
    white = whiten(x, mask)
    kept = x[mask].double()
    wanted = (kept - kept.mean()) / kept.std(unbiased=False)
    torch.testing.assert_close(white[mask].double(), wanted, atol=1e-4, rtol=1e-4)
    assert (white[~mask] == 0).all()
    x[~mask] = 1e9
    torch.testing.assert_close(whiten(x, mask), white)

    # Two processes with two rows each: the sums of both, in the order of the calls.
    sums = iter([torch.stack([mask.sum(), kept.sum()]), ((kept - kept.mean()) ** 2).sum()])
    half = whiten(x[:2], mask[:2], reduce=lambda _: next(sums))
    torch.testing.assert_close(half, white[:2])
