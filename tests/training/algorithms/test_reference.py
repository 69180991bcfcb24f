"""Compare one whole PPO update and one RFT step with a plain reference, written from the formulas.

The reference has no batches, no padding, no masks and no packing: one episode and one token at a
time, in fp64. `benchmarks/against_trl.py` compares the same steps with TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from toy_game import play, small_actor

from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.algorithms.ppo_update import PpoConfig, estimate, policy_step
from cuagent.training.algorithms.value import value_step
from cuagent.training.data.batch import collate
from cuagent.training.data.segments import Episode, Kind
from cuagent.training.policy.model import device_microbatches, logprobs_of, new_critic, per_token
from cuagent.training.policy.model import values as values_of
from cuagent.training.policy.packed_attention import use_packing

LOW, HIGH, LAMBDA, CAP = 0.2, 0.28, 0.95, 2.0


def tokens(episode: Episode) -> tuple[list[int], list[int], list[float]]:
    """Return the ids, the positions of sampled tokens, and the sampler's log-probabilities."""
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    for segment in episode.segments:
        if segment.kind is Kind.ACTION:
            sampled += range(len(ids), len(ids) + len(segment.ids))
            logprobs += segment.logprobs or ()
        ids += segment.ids
    return ids, sampled, logprobs


def reference(
    actor: Any, critic: Any, episodes: list[Episode], old: list[list[float]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of actor and critic over all episodes, with their graphs."""
    each, targets = [], []
    for episode, before in zip(episodes, old, strict=True):
        ids, sampled, sampler = tokens(episode)
        whole = torch.tensor([ids])
        logps = torch.log_softmax(actor(whole).logits[0], -1)
        value = critic(whole).logits[0, :, 0]
        v = [value[t - 1] for t in sampled]  # of the state before the token
        following = [*(x.item() for x in v[1:]), episode.reward]
        ahead, advantages = 0.0, []
        for now, then in zip(reversed(v), reversed(following), strict=True):
            ahead = then - now.item() + LAMBDA * ahead
            advantages.insert(0, ahead)
        for i, t in enumerate(sampled):
            weight = min(torch.tensor(before[i] - sampler[i]).exp().item(), CAP)
            each.append((logps[t - 1, ids[t]], before[i], advantages[i], weight))
            targets.append((v[i], v[i].item() + advantages[i]))
    gained = torch.tensor([a for _, _, a, _ in each])
    mean, deviation = gained.mean(), gained.std(correction=0)
    policy, regression = torch.zeros(()), torch.zeros(())
    for logp, before, advantage, weight in each:
        a = (advantage - mean) / deviation
        ratio = (logp - before).exp()
        clipped = min(max(ratio, torch.tensor(1 - LOW)), torch.tensor(1 + HIGH))
        policy = policy - weight * min(ratio * a, clipped * a)
    for value, target in targets:
        regression = regression + 0.5 * (value - target) ** 2
    return policy / len(each), regression / len(each)


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())])


@pytest.fixture
def doubles() -> Iterator[Callable[[], None]]:
    """Yield a function that makes fp64 the default dtype until the end of the test."""
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("packed", [False, True])
def test_ppo_step_equals_the_formulas(packed: bool, doubles: Callable[[], None]) -> None:
    episodes = play(small_actor(), 7, 2)
    actor, critic = small_actor(3), new_critic(small_actor(3))
    torch.nn.init.normal_(critic.score.weight)
    if packed:
        assert use_packing(actor)
        assert use_packing(critic)
    batch = collate(episodes)
    config = PpoConfig(tokens_per_microbatch=30, lam_critic=LAMBDA, importance_cap=CAP)
    generator = torch.Generator().manual_seed(0)
    # Apart from the actor's present ones, so that ratios lie on both sides of the clip.
    old = per_token(actor, batch, 30, logprobs_of)
    old += 0.4 * torch.randn(old.shape, generator=generator) * batch.action
    baseline = per_token(critic, batch, 30, values_of)
    advantages, returns = estimate(batch, baseline, config)
    weights = (old - batch.logprobs).exp().clamp(max=CAP)
    loss, _, clipped = policy_step(actor, batch, old, advantages, weights, None, config)
    value = value_step(critic, batch, returns, 30)
    assert 0.1 < float(clipped.float().mean()) < 0.9

    exact, exact_critic = small_actor(3).double(), new_critic(small_actor(3)).double()
    exact_critic.score.load_state_dict(critic.score.state_dict())
    doubles()
    before = [old[i][batch.action[i]].tolist() for i in range(len(episodes))]
    wanted, wanted_value = reference(exact, exact_critic, episodes, before)
    (wanted + wanted_value).backward()
    assert loss == pytest.approx(float(wanted), rel=1e-4, abs=1e-6)
    assert value == pytest.approx(float(wanted_value), rel=1e-5)
    for mine, theirs in ((actor, exact), (critic, exact_critic)):
        found, expected = gradient(mine).double(), gradient(theirs)
        assert float((found - expected).abs().max()) < 2e-5 * float(expected.abs().max())


@pytest.mark.parametrize("packed", [False, True])
def test_rft_step_equals_the_formula(packed: bool, doubles: Callable[[], None]) -> None:
    episodes, actor = play(small_actor(), 7, 2), small_actor(3)
    if packed:
        assert use_packing(actor)
    batch = collate(episodes)
    total = 0.0
    for _, part in device_microbatches(batch, 30, actor):
        loss = imitation_loss(logprobs_of(actor, part), part.action, batch.action_tokens)
        loss.backward()
        total += float(loss.detach())

    exact, terms = small_actor(3).double(), []
    doubles()
    for episode in episodes:
        ids, sampled, _ = tokens(episode)
        logps = torch.log_softmax(exact(torch.tensor([ids])).logits[0], -1)
        terms += [-logps[t - 1, ids[t]] for t in sampled]
    wanted = sum(terms) / len(terms)
    wanted.backward()
    assert total == pytest.approx(float(wanted), rel=1e-5)
    expected = gradient(exact)
    assert float((gradient(actor).double() - expected).abs().max()) < 2e-5 * float(
        expected.abs().max()
    )
