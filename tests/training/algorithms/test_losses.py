"""Test objectives and statistics against loops written from their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from toy_game import play, small_actor

from cuagent.training.algorithms.losses import (
    Clip,
    imitation_loss,
    kl_to,
    policy_loss,
    token_entropy,
    token_logprobs,
    truncated_weights,
    value_loss,
)
from cuagent.training.algorithms.metrics import critic_metrics, explained_variance, ratio_metrics
from cuagent.training.data.batch import Batch, collate
from cuagent.training.policy import head
from cuagent.training.policy.model import (
    has_plain_head,
    logprobs_and_entropy,
    logprobs_of,
    new_actor,
    small_config,
)

B, L, V = 3, 7, 11


@pytest.fixture
def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def action() -> torch.Tensor:
    return torch.tensor(
        [[0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1]]
    ).bool()


def test_logprobs_at_index_t_belong_to_token_t(g: torch.Generator, action: torch.Tensor) -> None:
    """Compare with the model's own logits, one row and token at a time, without padding."""
    actor = new_actor(small_config(V, 1, 16, 2, 16, 1, 0), 0)
    real = torch.arange(L) < torch.tensor([6, 4, 7])[:, None]
    ids = torch.randint(0, V, (B, L), generator=g)
    drawn = action.flatten().nonzero().flatten()
    batch = Batch(ids, real, action, drawn, torch.zeros(B, L), torch.arange(B), torch.zeros(B))
    with torch.no_grad():
        logprobs, entropy = logprobs_and_entropy(actor, batch)
    assert not torch.stack([logprobs, entropy])[:, ~action].any()
    for b, t in action.nonzero().tolist():
        with torch.no_grad():
            p = torch.softmax(actor(ids[b : b + 1, :t]).logits[0, -1].double(), 0)
        assert float(logprobs[b, t]) == pytest.approx(math.log(p[ids[b, t]]), abs=1e-5)
        assert float(entropy[b, t]) == pytest.approx(-float((p * p.log()).sum()), abs=1e-5)


def test_bf16_logits_give_fp32_logprobs() -> None:
    logits = torch.tensor([[12, 0]], dtype=torch.bfloat16)
    logprob = token_logprobs(logits, torch.tensor([0]))
    assert logprob.dtype == torch.float32
    assert float(logprob[0]) == pytest.approx(-math.exp(-12), rel=0.1)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_policy_loss_matches_loop(
    g: torch.Generator, action: torch.Tensor, dual: float | None
) -> None:
    old = -torch.rand(B, L, generator=g) * 2
    new = (old + 1.5 * torch.randn(B, L, generator=g)).requires_grad_()
    advantages = torch.randn(B, L, generator=g)
    weights = torch.rand(B, L, generator=g)
    clip = Clip(0.2, 0.28, dual)
    result = policy_loss(new, old, advantages, action, 100.0, clip, weights)
    total, clipped = 0.0, 0
    for b in range(B):
        for t in range(L):
            if not action[b, t]:
                continue
            a, r = float(advantages[b, t]), math.exp(float((new - old).detach()[b, t]))
            bounded = min(max(r, 0.8), 1.28) * a
            gain = min(r * a, bounded)
            clipped += bounded < r * a
            if dual is not None and a < 0:
                gain = max(gain, dual * a)
            total -= gain * float(weights[b, t])
    assert float(result.loss.detach()) == pytest.approx(total / 100, rel=1e-4)
    assert int(result.clipped.sum()) == clipped > 0
    result.loss.backward()
    assert (new.grad[~action] == 0).all()


def test_sum_over_microbatches_is_batch_loss(g: torch.Generator, action: torch.Tensor) -> None:
    new, old, a = (torch.randn(B, L, generator=g) / 8 for _ in range(3))
    count = float(action.sum())
    whole = policy_loss(new, old, a, action, count, Clip()).loss
    parts = [policy_loss(new[i], old[i], a[i], action[i], count, Clip()).loss for i in range(B)]
    torch.testing.assert_close(whole, torch.stack(parts).sum())
    by_rank = torch.stack([imitation_loss(new[i], action[i], count) for i in range(B)]).sum()
    torch.testing.assert_close(by_rank, -new[action].mean())


def test_truncated_weights_are_capped_without_gradient() -> None:
    trainer = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weights = truncated_weights(trainer, torch.tensor([-1.0, -9.0, -0.5]))
    torch.testing.assert_close(weights, torch.tensor([1.0, 2.0, math.exp(-0.5)]))
    assert not weights.requires_grad


def test_value_loss_is_half_squared_error_and_clips_like_ppo2(action: torch.Tensor) -> None:
    values, returns, old = torch.full((B, L), 2.0), torch.full((B, L), 3.0), torch.zeros(B, L)
    n = float(action.sum())
    assert float(value_loss(values, returns, action, n)) == pytest.approx(0.5)
    # Kept within 0.5 of the old value 0 the prediction is off by 2.5: the worse of the two counts.
    assert float(value_loss(values, returns, action, n, old, 0.5)) == pytest.approx(0.5 * 2.5**2)


def test_kl_is_zero_for_equal_and_positive_for_other_policies(
    g: torch.Generator, action: torch.Tensor
) -> None:
    here = -torch.rand(B, L, generator=g)
    assert float(kl_to(here, here, action, 1.0)) == 0
    assert float(kl_to(here, here + 0.3, action, 1.0)) > 0
    assert float(kl_to(here, here - 0.3, action, 1.0)) > 0


def test_explained_variances_differ_by_offset(g: torch.Generator) -> None:
    returns = torch.randn(1000, generator=g)
    centred, plain = explained_variance(returns + 2, returns)
    assert centred == pytest.approx(1.0, abs=1e-4)
    assert plain == pytest.approx(1 - 4 / float(returns.var(unbiased=False)), rel=1e-3)
    assert all(math.isnan(v) for v in explained_variance(returns, torch.ones(1000)))


def test_explained_variance_by_quartile_shows_late_accuracy() -> None:
    n, t = 64, 8
    returns = torch.where(torch.arange(n) % 2 == 0, 3.0, -1.0)[:, None].expand(n, t + 1)
    values = torch.where(torch.arange(t + 1) > 6, returns, torch.ones(n, t + 1))
    action = torch.ones(n, t + 1, dtype=torch.bool)
    action[:, 0] = False
    found = critic_metrics(values, returns, action, torch.arange(n))
    assert found["ev_q1"] == pytest.approx(0, abs=1e-6)
    assert found["ev_q4"] == pytest.approx(1, abs=1e-6)
    assert 0 < found["ev"] < 1


def test_ratio_metrics_of_unchanged_policy_are_exact() -> None:
    still = ratio_metrics(torch.zeros(5), torch.zeros(5, dtype=torch.bool))
    assert (still["ratio_mean"], still["approx_kl"], still["clip_fraction"]) == (1, 0, 0)


def test_entropy_of_known_distributions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(3.0), 0.0, -math.inf, -50.0]])
    found = token_entropy(logits[:, :4].clamp(min=-80))
    assert float(found[0]) == pytest.approx(math.log(4))
    assert float(found[1]) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert token_entropy(logits.bfloat16().clamp(min=-80)).dtype == torch.float32
    torch.testing.assert_close(token_entropy(torch.zeros(2, 3, 5)), torch.full((2, 3), math.log(5)))


def test_logprob_of_each_id_in_a_batch() -> None:
    logits = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]])
    ids = torch.tensor([[2, 1]])
    wanted = torch.log_softmax(logits, -1)[0]
    found = token_logprobs(logits, ids)
    torch.testing.assert_close(found, torch.stack([wanted[0, 2], wanted[1, 1]])[None])


def test_clip_has_the_bounds_of_the_paper() -> None:
    assert (Clip().low, Clip().high, Clip().dual) == (0.2, 0.28, None)


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"low": 0.0}, True),
        ({"low": 1.0}, True),
        ({"low": -0.01}, False),
        ({"low": 1.01}, False),
        ({"high": 0.0}, True),
        ({"high": 5.0}, True),
        ({"high": -0.01}, False),
        ({"dual": 1.0}, True),
        ({"dual": 0.99}, False),
    ],
)
def test_clip_refuses_bounds_without_meaning(arguments: dict[str, float], valid: bool) -> None:
    if valid:
        assert Clip(**arguments)
        return
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Clip(**arguments)


def one_token_loss(ratio: float, advantage: float, clip: Clip) -> tuple[float, bool]:
    """Loss and clip flag of one action token with this probability ratio."""
    old, action = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    new = torch.full((1, 1), math.log(ratio))
    result = policy_loss(new, old, torch.full((1, 1), advantage), action, 1.0, clip)
    return float(result.loss), bool(result.clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss", "clipped"),
    [
        (2.0, 1.0, None, -1.28, True),
        (1.2, 1.0, None, -1.2, False),
        (0.5, 1.0, None, -0.5, False),
        (0.5, -1.0, None, 0.8, True),
        (0.9, -1.0, None, 0.9, False),
        (9.0, -1.0, None, 9.0, False),
        (9.0, -1.0, 3.0, 3.0, False),
        (9.0, 1.0, 3.0, -1.28, True),
        (2.0, 0.0, 3.0, 0.0, False),
        (1.0, 1.0, None, -1.0, False),
    ],
)
def test_clipped_surrogate_of_one_token(
    ratio: float, advantage: float, dual: float | None, loss: float, clipped: bool
) -> None:
    found = one_token_loss(ratio, advantage, Clip(dual=dual))
    assert found == (pytest.approx(loss, abs=1e-6), clipped)


def test_policy_loss_reports_the_log_ratio_without_gradient(action: torch.Tensor) -> None:
    new = torch.full((B, L), 0.5, requires_grad=True)
    result = policy_loss(new, torch.zeros(B, L), torch.ones(B, L), action, 1.0, Clip())
    assert result.log_ratio.tolist() == [0.5] * int(action.sum())
    assert not result.log_ratio.requires_grad
    assert not result.clipped.requires_grad


def test_importance_weights_have_a_cap_of_two_and_survive_large_differences() -> None:
    zero = torch.zeros(3)
    found = truncated_weights(torch.tensor([-100.0, -20.5, 0.5]), zero)
    torch.testing.assert_close(found, torch.tensor([-20.0, -20.0, 0.5]).exp())
    found = truncated_weights(torch.tensor([19.5, 20.5, 100.0]), zero, cap=math.inf)
    torch.testing.assert_close(found, torch.tensor([19.5, 20.0, 20.0]).exp())
    assert truncated_weights(torch.tensor([5.0]), torch.zeros(1), cap=7.0).tolist() == [7.0]


@pytest.mark.parametrize(
    ("value", "old", "clip", "error"),
    [
        (2.0, 0.0, None, 1.0),  # no clip
        (2.0, 0.0, 5.0, 1.0),  # within the clip
        (0.0, 2.0, 0.5, 3.0),  # clipped to 1.5: the unclipped error is larger
        (6.0, 0.0, 4.0, 3.0),  # clipped to 4: the unclipped error is larger
        (2.0, 0.0, 1.0, 2.0),  # clipped to 1: the clipped error is larger
        (4.0, 7.0, 1.0, 3.0),  # clipped to 6: the clipped error is larger
    ],
)
def test_value_loss_takes_the_larger_error(
    value: float, old: float, clip: float | None, error: float
) -> None:
    action = torch.tensor([[True, False]])
    values, returns = torch.full((1, 2), value), torch.full((1, 2), 3.0)
    loss = value_loss(values, returns, action, 1.0, torch.full((1, 2), old), clip)
    assert float(loss) == pytest.approx(0.5 * error**2)


def test_value_loss_without_old_values_is_not_clipped() -> None:
    action = torch.ones(1, 1, dtype=torch.bool)
    loss = value_loss(torch.full((1, 1), 2.0), torch.full((1, 1), 3.0), action, 1.0, None, 0.5)
    assert float(loss) == pytest.approx(0.5)


def test_kl_estimator_equals_its_formula_and_is_bounded() -> None:
    action = torch.tensor([[True, True, False]])
    logprobs, reference = torch.tensor([[-1.0, -2.0, 0.0]]), torch.tensor([[-1.5, -1.0, 50.0]])
    wanted = (math.exp(-0.5) + 0.5 - 1) + (math.exp(1.0) - 1.0 - 1)
    assert float(kl_to(logprobs, reference, action, 2.0)) == pytest.approx(wanted / 2)
    one = torch.ones(1, 1, dtype=torch.bool)
    far = kl_to(torch.zeros(1, 1), torch.full((1, 1), 30.0), one, 1.0)
    assert float(far) == pytest.approx(math.exp(20) - 21)
    near = kl_to(torch.zeros(1, 1), torch.full((1, 1), -30.0), one, 1.0)
    assert float(near) == pytest.approx(math.exp(-20) + 19)


def test_imitation_loss_is_the_mean_negative_logprob() -> None:
    logprobs, action = torch.tensor([[-1.0, -3.0, -9.0]]), torch.tensor([[True, True, False]])
    assert float(imitation_loss(logprobs, action, 2.0)) == 2.0


def peaks(actor: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any, Any]:
    """Return the largest number of rows whose logits were in memory, the loss and the gradients."""
    sizes: list[int] = []
    own, words = head.product, actor.get_output_embeddings().out_features

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = own(a, b)
        if found.shape[1] == words:
            sizes.append(len(found))
        return found

    monkeypatch.setattr(head, "product", watched)
    loss = -logprobs_of(actor, batch).sum()
    loss.backward()
    found = [p.grad.clone() for p in actor.parameters() if p.grad is not None]
    actor.zero_grad(set_to_none=True)
    monkeypatch.setattr(head, "product", own)
    return max(sizes), loss.detach(), found


def test_logits_are_computed_in_chunks_with_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, batch = small_actor(), collate(play(small_actor(), 12, 1))
    rows, loss, gradients = peaks(actor, batch, monkeypatch)
    assert rows == batch.action_tokens
    words = actor.get_output_embeddings().out_features
    monkeypatch.setattr(head, "CHUNK", 7 * words)
    few, same_loss, same_gradients = peaks(actor, batch, monkeypatch)
    assert few in (6, 7)
    torch.testing.assert_close(same_loss, loss)
    assert len(gradients) == len(same_gradients)
    for a, b in zip(gradients, same_gradients, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(-logprobs_and_entropy(actor, batch)[0].sum(), loss)


def test_capped_logits_are_not_computed_in_chunks() -> None:
    actor = small_actor()
    assert has_plain_head(actor)
    actor.config.final_logit_softcapping = 30.0
    assert not has_plain_head(actor)
    batch = collate(play(small_actor(), 4, 1))
    capped = logprobs_of(actor, batch)  # this family does not cap, so the result is the same
    actor.config.final_logit_softcapping = None
    torch.testing.assert_close(capped, logprobs_of(actor, batch))
