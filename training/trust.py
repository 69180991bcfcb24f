"""Bound how far one PPO iteration moves the policy: shrink a step that went too far.

PPO's clip ends the gain of a token whose own ratio has moved enough, and bounds nothing else: all
tokens share the weights, Adam's steps are as long for a small gradient as for a large one, and no
clip follows the last minibatch. A policy of near-certain tokens can thus lose in one iteration what
it learned in ten (docs/research/demonstration.md).
Not covered: a lasting pull towards one policy (`kl_weight`); the reaction to a collapsed run
(`monitor.py`).
Invariant: afterwards the weights are on the line between those before and those after the updates.
Optimizers are unchanged. The cost is one copy of the trained weights, two if a step is shrunk, and
one pass over the batch for each measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuagent.training.metrics import Metrics

HALVINGS = 6
"""Largest number of halvings; if a sixty-fourth of a step is still too far, the step is undone."""
MIN_PROBABILITY = 1e-6
"""Smallest probability of all other tokens together: fp32 resolves no less for a near-certain
token."""


def snapshot(model: Any) -> list[Tensor]:
    """Return a copy of the trained weights (this process' shards if they are sharded)."""
    return [p.detach().clone() for p in trained(model)]


def shrink_step(
    model: Any, before: Sequence[Tensor], distance: Callable[[], float], limit: float
) -> Metrics:
    """Halve the step since `before` until `distance()`, the KL in nats per token, is within
    `limit`.

    This is the line search of TRPO (Schulman et al. 2015, appendix C), after the step instead of in
    it.
    Returns `kl_made` of the whole step, the final `kl`, and the share of the step that was `kept`.
    All processes must measure the same distances.
    """
    kl_made = kl = distance()
    proposed = None if kl <= limit else snapshot(model)
    kept = 1.0
    while proposed is not None and not kl <= limit:  # `not <=` also catches NaN
        kept = kept / 2 if kept > 0.5**HALVINGS else 0.0
        interpolate(model, before, proposed, kept)
        kl = distance() if kept else 0.0
    return {"kl_made": kl_made, "kl": kl, "kept": kept}


@torch.no_grad()
def interpolate(
    model: Any, before: Sequence[Tensor], proposed: Sequence[Tensor], share: float
) -> None:
    """Set the weights to `before` plus `share` of the step from there to `proposed`."""
    for now, then, there in zip(trained(model), before, proposed, strict=True):
        now.copy_(then + share * (there - then) if share else then)


def trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def binary_kl(old: Tensor, new: Tensor, action: Tensor) -> float:
    """Return KL(old || new) in nats per action token, of each sampled token against all others
    together.

    [B, L] log-probabilities. It is a lower bound of the KL over the whole vocabulary (up to
    `MIN_PROBABILITY`). It avoids the heavy tail of estimates from sampled tokens, where one token
    that becomes likely can dominate: from -9 to -0.1 it counts 7,000 nats by r - 1 - log r, and 2.4
    here.
    """
    others_p, others_q = (
        (-torch.expm1(x[action].double())).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        for x in (old, new)
    )
    sampled_p, sampled_q = 1 - others_p, 1 - others_q
    kl = sampled_p * (sampled_p / sampled_q).log() + others_p * (others_p / others_q).log()
    return float(kl.mean())
