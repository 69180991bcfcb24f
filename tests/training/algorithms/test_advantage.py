"""Test GAE against the formula, and against inserted observation tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuagent.training.algorithms.advantage import (
    actions,
    advantages_and_returns,
    gae,
    length_adaptive,
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


def test_returns_with_lambda_one_are_the_terminal_rewards() -> None:
    lengths = torch.tensor([3, 1])
    values = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
    rewards = torch.tensor([2.0, -1.0])
    returns = values * (torch.arange(3) < lengths[:, None]) + gae(values, rewards, lengths, 1.0)
    torch.testing.assert_close(returns, torch.tensor([[2.0, 2.0, 2.0], [-1.0, 0.0, 0.0]]))


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


def test_returns_use_the_lambda_of_the_critic() -> None:
    action, values = row([(True, 0.5), (False, 9.0), (True, -0.25), (True, 1.5)])
    v = [0.5, -0.25, 1.5]
    advantages, returns = advantages_and_returns(
        values, action, torch.tensor([0]), torch.tensor([2.0]), 0.5, 0.9
    )
    assert advantages[action].tolist() == pytest.approx(by_the_formula(v, 2.0, 0.5))
    by_critic = [a + b for a, b in zip(v, by_the_formula(v, 2.0, 0.9), strict=True)]
    assert returns[action].tolist() == pytest.approx(by_critic)
    assert (returns[~action] == 0).all()


@pytest.mark.parametrize("alpha", [None, 0.2])
def test_actor_without_a_lambda_uses_the_length_adaptive_one(alpha: float | None) -> None:
    lengths = torch.tensor([2, 300])
    action = torch.arange(301) <= lengths[:, None]
    action[:, 0] = False
    values = torch.randn(2, 301, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rewards = torch.tensor([3.0, -1.0])
    given = {} if alpha is None else {"alpha": alpha}
    advantages, _ = advantages_and_returns(
        values, action, torch.arange(2), rewards, None, 1.0, **given
    )
    for i, length in enumerate(lengths.tolist()):
        lam = min(max(1 - 1 / ((alpha or 0.05) * length), 0.9), 1.0)
        wanted = by_the_formula(values[i][action[i]].tolist(), float(rewards[i]), lam)
        assert advantages[i][action[i]].tolist() == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def test_length_adaptive_lambda_has_the_defaults_of_the_paper() -> None:
    lam = length_adaptive(torch.tensor([0, 1, 199, 1000, 10**9]))
    wanted = torch.tensor([0.9, 0.9, 0.9, 0.98, 1.0])
    torch.testing.assert_close(lam, wanted, atol=1e-3, rtol=0)
    assert float(length_adaptive(torch.tensor(1000))) == pytest.approx(1 - 1 / 50)
    assert float(length_adaptive(torch.tensor(10), floor=0.1)) == pytest.approx(0.1)


def test_layout_marks_and_restores_the_actions() -> None:
    action = torch.tensor([[False, True, True], [False, False, True]])
    layout = actions(action, torch.tensor([0, 1]))
    assert layout.present.tolist() == [[True, True], [True, False]]
    x = torch.arange(6.0).view(2, 3)
    assert layout.compress(x).tolist() == [[1, 2], [5, 0]]
    assert layout.expand(layout.compress(x), x).tolist() == [[0, 1, 2], [0, 0, 5]]
    assert layout.lengths.tolist() == [2, 1]


def test_missing_episode_at_the_end_of_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="episode 2 of the batch"):
        actions(torch.tensor([[True], [True], [False]]), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="episode 0 of the batch"):
        actions(torch.tensor([[False], [True]]), torch.tensor([0, 1]))


def test_naive_gae_counts_every_real_token_as_a_step() -> None:
    values = torch.tensor([[9.0, 0.5, 0.1, 0.2, 9.0]], dtype=torch.float64)
    real = torch.tensor([[True, True, True, True, False]])
    action = torch.tensor([[False, True, False, True, False]])
    found = naive_advantages(values, real, action, torch.tensor([2.0]), 0.8)
    wanted = by_the_formula([0.5, 0.1, 0.2], 2.0, 0.8)
    assert found[0].tolist() == pytest.approx([0, wanted[0], 0, wanted[2], 0])
    assert real.all(1).tolist() == [False]
    assert real[0, 0], "the mask of the caller is unchanged"


def test_whitening_of_equal_values_is_zero_and_keeps_the_type() -> None:
    x = torch.tensor([[3.0, 3.0, 7.0]])
    white = whiten(x, torch.tensor([[True, True, False]]))
    assert white.tolist() == [[0, 0, 0]]
    assert white.dtype == x.dtype
    small = whiten(torch.tensor([0.0, 2e-5]), torch.tensor([True, True]))
    assert small.tolist() == pytest.approx(
        [-1e-5 / (1.01e-8**0.5), 1e-5 / (1.01e-8**0.5)], rel=1e-3
    )
