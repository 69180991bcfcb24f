"""Make the updates of PPO from one batch of episodes: advantages, clipped policy loss, value loss.

The objective is equation 5 of CUDA Agent, averaged over all action tokens of the batch (DAPO);
`advantage.py` computes the advantages.
Not covered: the loop over iterations (`ppo.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cuagent.training import parallel
from cuagent.training.algorithms.advantage import advantages_and_returns, naive_advantages, whiten
from cuagent.training.algorithms.losses import Clip, kl_to, policy_loss, truncated_weights
from cuagent.training.algorithms.metrics import (
    Metrics,
    critic_metrics,
    ratio_metrics,
)
from cuagent.training.algorithms.monitor import Action, Limits
from cuagent.training.algorithms.reward import Reward
from cuagent.training.algorithms.value import value_step
from cuagent.training.config import SEEDS, above, at_least, between
from cuagent.training.data.batch import Batch, collate, take
from cuagent.training.data.segments import Episode
from cuagent.training.policy.model import (
    device_microbatches,
    logprobs_and_entropy,
    logprobs_of,
    per_token,
    values,
)
from cuagent.training.policy.optimize import AdamW, apply_gradients, weight_norm


@dataclass(frozen=True)
class PpoConfig:
    """Settings of PPO. Defaults are those of the CUDA Agent paper where it states them; its
    learning rates suit a model of 230B parameters."""

    iterations: int = 150
    minibatches: int = 1
    """Number of updates for each batch of episodes and epoch; the paper makes one."""
    epochs: int = 1
    actor: AdamW = field(default_factory=lambda: AdamW(lr=3e-6))
    critic: AdamW = field(default_factory=lambda: AdamW(lr=6e-6))
    clip: Clip = field(default_factory=Clip)
    value_clip: float | None = None
    lam_actor: float | None = 0.95
    """Lambda of the actor's GAE; None: 1 - 1 / (`alpha` * number of action tokens), for each
    episode."""
    lam_critic: float = 0.95
    alpha: float = 0.05
    reward: Reward = Reward.MILESTONE
    naive_gae: bool = False
    """True to compute GAE with tool output as steps too (`naive_advantages`); for the ablation
    only."""
    importance_cap: float | None = 2.0
    """Largest importance weight for the difference between sampler and trainer
    (`truncated_weights`). None: no weights, for a sampler that equals the trainer."""
    kl_weight: float = 0.0
    """Weight of the KL divergence from the policy that PPO started from; the paper has no such
    term."""
    critic_only: int = 0
    """Number of iterations at the start in which only the critic is trained."""
    tokens_per_microbatch: int = 16384
    seed: int = 0
    save_every: int = 5
    evaluate_every: int = 10
    """Iterations between two evaluations on the held-out tasks; the initial policy is evaluated
    too."""
    limits: Limits = field(default_factory=Limits)
    on_alarm: Action = Action.WARN
    rollbacks: int = 3
    """Number of severe alarms after which the run rewinds; the next severe alarm stops it."""

    def __post_init__(self) -> None:
        at_least(0, self, "iterations", "critic_only", "rollbacks")
        at_least(0, self, "kl_weight", "value_clip")
        above(0, self, "importance_cap", "alpha")
        between(0, 1, self, "lam_actor", "lam_critic")
        between(*SEEDS, self, "seed")
        at_least(1, self, "minibatches", "epochs", "tokens_per_microbatch", "save_every")
        at_least(1, self, "evaluate_every")


def update(
    actor: Any,
    critic: Any,
    optimizers: Mapping[str, torch.optim.Optimizer],
    episodes: Sequence[Episode],
    config: PpoConfig,
    iteration: int,
    reference: Any | None = None,
) -> Metrics:
    """Make `epochs * minibatches` updates of actor and critic from one batch of episodes; return
    the metrics."""
    budget = config.tokens_per_microbatch
    batch = collate(episodes)
    # The denominator of PPO's ratio is what the *trainer* computes before the update, so the ratio
    # is 1 at the first minibatch for every engine. The engine's error goes into `weights`, capped.
    old, entropy = per_token(actor, batch, budget, logprobs_and_entropy, channels=2)
    baseline = per_token(critic, batch, budget, values)
    reference_logprobs = (
        per_token(reference, batch, budget, logprobs_of) if reference is not None else None
    )
    advantages, returns = estimate(batch, baseline, config)
    cap = config.importance_cap
    weights = truncated_weights(old, batch.logprobs, cap) if cap is not None else None
    # Use the outcome, not `returns`: with lambda < 1 the returns contain the critic's own values,
    # so even an untrained critic explains them (0.95 was seen on 400 tokens).
    metrics = critic_metrics(baseline, batch.outcome, batch.action, batch.row_episode)
    metrics["entropy"] = float(entropy[batch.action].mean())
    metrics["sampler_gap"] = float((old - batch.logprobs)[batch.action].abs().max())

    moved: list[tuple[Tensor, Tensor]] = []
    sums: Metrics = {}
    steps = config.epochs * config.minibatches
    for step, rows in enumerate(minibatches(batch, config, iteration)):
        mini = take(batch, rows)
        width = mini.ids.shape[1]

        def of(x: Tensor | None, rows: Tensor = rows, width: int = width) -> Tensor | None:
            return None if x is None else x[rows, :width]

        loss = value_step(
            critic, mini, returns[rows, :width], budget, of(baseline), config.value_clip
        )
        critic_norm = apply_gradients(critic, optimizers["critic"], config.critic, iteration)
        add(sums, {"critic_loss": loss / steps, "grad_norm_critic": critic_norm / steps})
        if iteration < config.critic_only:
            continue
        actor_loss, log_ratio, clipped = policy_step(
            actor, mini, of(old), of(advantages), of(weights), of(reference_logprobs), config
        )
        turn_of_actor = iteration - config.critic_only
        actor_norm = apply_gradients(actor, optimizers["actor"], config.actor, turn_of_actor)
        add(sums, {"actor_loss": actor_loss / steps, "grad_norm_actor": actor_norm / steps})
        moved.append((log_ratio, clipped))
        if step == 0:
            sums["first_log_ratio_max"] = float(log_ratio.abs().max())
    if moved:
        metrics |= ratio_metrics(torch.cat([r for r, _ in moved]), torch.cat([c for _, c in moved]))
    metrics |= {"weight_norm_actor": weight_norm(actor), "weight_norm_critic": weight_norm(critic)}
    return metrics | sums


def estimate(batch: Batch, baseline: Tensor, config: PpoConfig) -> tuple[Tensor, Tensor]:
    """Compute whitened advantages and returns, both [B, L], from `baseline` [B, L], the critic's
    values."""
    advantages, returns = advantages_and_returns(
        baseline,
        batch.action,
        batch.row_episode,
        batch.rewards,
        config.lam_actor,
        config.lam_critic,
        config.alpha,
    )
    if config.naive_gae:
        lam = 0.95 if config.lam_actor is None else config.lam_actor
        advantages = naive_advantages(baseline, batch.real, batch.action, batch.rewards, lam)
    return whiten(advantages, batch.action), returns


def minibatches(batch: Batch, config: PpoConfig, iteration: int) -> list[Tensor]:
    """Return one tensor of row indices for each update; all windows of an episode are in the same
    minibatch."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + iteration)
    out = []
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(batch.rewards), generator=generator)
        for chosen in shuffled.tensor_split(config.minibatches):
            rows = torch.isin(batch.row_episode, chosen).nonzero().flatten()
            if len(rows):
                out.append(rows)
    return out


def policy_step(
    actor: Any,
    batch: Batch,
    old: Tensor | None,
    advantages: Tensor | None,
    weights: Tensor | None,
    reference_logprobs: Tensor | None,
    config: PpoConfig,
) -> tuple[float, Tensor, Tensor]:
    """Accumulate the actor's gradients over the minibatch; return (loss, log ratios [N], clipped
    [N]).

    N is the number of action tokens over all processes. `reference_logprobs` None: no KL term.
    """
    assert old is not None
    assert advantages is not None
    count = batch.action_tokens
    total = 0.0
    ratios, clips = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for rows, part in device_microbatches(batch, config.tokens_per_microbatch, actor):
        width = part.ids.shape[1]

        def of(x: Tensor, rows: Tensor = rows, width: int = width) -> Tensor:
            return x[rows, :width].to(actor.device)

        current = logprobs_of(actor, part)
        result = policy_loss(
            current,
            of(old),
            of(advantages),
            part.action,
            count,
            config.clip,
            None if weights is None else of(weights),
        )
        loss = result.loss
        if reference_logprobs is not None and config.kl_weight:
            loss = loss + config.kl_weight * kl_to(
                current, of(reference_logprobs), part.action, count
            )
        loss.backward()
        total += float(loss.detach())
        ratios.append(result.log_ratio.cpu())
        clips.append(result.clipped.cpu())
    # Gather the tokens of all processes for the statistics; their order does not matter.
    everywhere = parallel.gather_interleaved([(torch.cat(ratios), torch.cat(clips))])
    ratios, clips = [r for r, _ in everywhere], [c for _, c in everywhere]
    return parallel.sum_number(total), torch.cat(ratios), torch.cat(clips)


def add(sums: Metrics, terms: Metrics) -> None:
    for name, value in terms.items():
        sums[name] = sums.get(name, 0.0) + value
