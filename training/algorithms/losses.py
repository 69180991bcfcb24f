"""Compute the training objectives from tensors: imitation, clipped policy gradient, value
regression.

Every loss is a sum over action tokens divided by `count`, the number of action tokens of the whole
(mini-)batch over all microbatches and processes. A mean per microbatch or per process would give
tokens of short episodes more weight.
Not covered: advantages (`advantage.py`), statistics (`metrics.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuagent.training.config import at_least, between


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log p(id) for `logits` [..., V] and `ids` [...]; shape [...].

    Computed in fp32: near-certain tokens lose their gradient in bf16.
    """
    wide = logits.float()
    return wide.gather(-1, ids[..., None]).squeeze(-1) - torch.logsumexp(wide, -1)


def token_entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each distribution; `logits` [..., V], result [...]."""
    logp = torch.log_softmax(logits.float(), -1)
    return -(logp.exp() * logp).sum(-1)


def imitation_loss(logprobs: Tensor, action: Tensor, count: float) -> Tensor:
    """Return the summed negative log-likelihood of the sampled tokens, divided by `count`.

    It is equation 2 of CUDA Agent. `logprobs`, `action` [B, L]. Sampled tokens include the end of a
    turn: a policy that does not learn this token does not stop after a tool call, and writes the
    tool's answer itself.
    """
    return -torch.where(action, logprobs, 0.0).sum() / count


@dataclass(frozen=True)
class Clip:
    """Clipping bounds of the probability ratio pi / pi_old: from 1 - `low` to 1 + `high`.

    `dual` bounds the loss of tokens with a negative advantage whose ratio explodes (dual-clip PPO);
    None disables it, as in the paper.
    """

    low: float = 0.2
    high: float = 0.28
    dual: float | None = None

    def __post_init__(self) -> None:
        between(0, 1, self, "low")
        at_least(0, self, "high")
        at_least(1, self, "dual")


@dataclass(frozen=True)
class PolicyLoss:
    """The policy loss to differentiate, and detached tensors for statistics."""

    loss: Tensor
    log_ratio: Tensor
    """log pi / pi_old of the action tokens [N]."""
    clipped: Tensor
    """[N] bool: True for action tokens whose loss the clipping bounds determined."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    action: Tensor,
    count: float,
    clip: Clip,
    weights: Tensor | None = None,
) -> PolicyLoss:
    """Return the clipped surrogate loss, summed over action tokens and divided by `count`.

    It is equation 5 of CUDA Agent. All tensors are [B, L]. `weights`: importance weights of
    `truncated_weights`, for a sampler that differs from the trainer; None weighs all tokens alike.
    """
    log_ratio = (logprobs - old_logprobs)[action]
    a = advantages[action]
    ratio = log_ratio.exp()
    free = ratio * a
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high) * a
    gain = torch.minimum(free, bounded)
    if clip.dual is not None:
        gain = torch.where(a < 0, torch.maximum(gain, clip.dual * a), gain)
    if weights is not None:
        gain = gain * weights[action]
    return PolicyLoss(-gain.sum() / count, log_ratio.detach(), (bounded < free).detach())


def truncated_weights(trainer: Tensor, sampler: Tensor, cap: float = 2.0) -> Tensor:
    """Return min(pi_trainer / pi_sampler, cap) per token, without gradient.

    Both arguments are log-probabilities of the *same* policy, computed by two engines. The result
    corrects for their different kernels and precision (truncated importance sampling); it is 1
    where both agree.
    """
    return (trainer - sampler).detach().clamp(-20, 20).exp().clamp(max=cap)


def value_loss(
    values: Tensor,
    returns: Tensor,
    action: Tensor,
    count: float,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Return half the squared error of the values, summed over action tokens and divided by
    `count`.

    It is equation 4 of CUDA Agent. With `clip`, each value is also clamped to within `clip` of
    `old_values`, and the larger of the two errors is used, as in PPO2.
    """
    error = (values - returns) ** 2
    if clip is not None and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * torch.where(action, error, 0.0).sum() / count


def kl_to(logprobs: Tensor, reference: Tensor, action: Tensor, count: float) -> Tensor:
    """Return an estimate of KL(pi || reference), summed over action tokens and divided by `count`.

    The estimator is e^d - d - 1 with d = log reference - log pi, which is never negative.
    """
    d = (reference - logprobs)[action].clamp(-20, 20)
    return (d.exp() - d - 1).sum() / count
