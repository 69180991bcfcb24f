"""How far one iteration may take the policy: a step that went further is drawn back.

For: PPO's clip ends the gain of a token whose own ratio has moved enough, and bounds nothing else:
weights are shared by all tokens, Adam's steps are as long for a small gradient as for a large one,
and what the last minibatch does meets no clip. A policy of near-certain tokens can so lose in one
iteration what it learned in ten (docs/DEMONSTRATION.md).
Not covered: a lasting pull towards one policy (`kl_weight`); what is done once a run has fallen
(`monitor.py`).
Invariant: afterwards the weights lie on the line from those before to those that the updates made.
Optimizers are left as they are. Costs a copy of what is trained, two where a step is drawn back,
and a pass over the batch for each look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuagent.training.metrics import Metrics

HALVINGS = 6
"""A step of which a sixty-fourth still goes too far is not made at all."""
MIN_PROBABILITY = 1e-6
"""What all other tokens together have at least: less fp32 cannot say of a token that is certain."""


def snapshot(model: Any) -> list[Tensor]:
    """What is trained, as it stands now: a copy, of this process' shards where it is sharded."""
    return [p.detach().clone() for p in trained(model)]


def shrink_step(
    model: Any, before: Sequence[Tensor], distance: Callable[[], float], limit: float
) -> Metrics:
    """Halve the step since `before` until `far()`, the KL in nats a token, is within `limit`.

    The line search of TRPO (Schulman et al. 2015, appendix C), after the step instead of in it.
    Returns `kl_made` by the whole step, `kl` as it is left, and the share of the step that was
    `kept`. Several processes must be told the same distances.
    """
    kl_made = kl = distance()
    proposed = None if kl <= limit else snapshot(model)
    kept = 1.0
    while proposed is not None and not kl <= limit:  # what is not a number is never within
        kept = kept / 2 if kept > 0.5**HALVINGS else 0.0
        interpolate(model, before, proposed, kept)
        kl = distance() if kept else 0.0
    return {"kl_made": kl_made, "kl": kl, "kept": kept}


@torch.no_grad()
def interpolate(
    model: Any, before: Sequence[Tensor], proposed: Sequence[Tensor], share: float
) -> None:
    """The weights before, and `share` of the step from there to what was made."""
    for now, then, there in zip(trained(model), before, proposed, strict=True):
        now.copy_(then + share * (there - then) if share else then)


def trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def binary_kl(old: Tensor, new: Tensor, action: Tensor) -> float:
    """KL(old || new) in nats an action token, of each sampled token against all others together.

    [B, L] log-probabilities. No more than the KL over the whole vocabulary (but for `LEAST`), and
    without the tail of its estimates from sampled tokens, of which one that becomes likely can
    decide: from -9 to -0.1 it counts 7,000 nats by r - 1 - log r, and 2.4 by this.
    """
    others_p, others_q = (
        (-torch.expm1(x[action].double())).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        for x in (old, new)
    )
    sampled_p, sampled_q = 1 - others_p, 1 - others_q
    kl = sampled_p * (sampled_p / sampled_q).log() + others_p * (others_p / others_q).log()
    return float(kl.mean())
