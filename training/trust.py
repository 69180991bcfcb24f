"""How far one iteration may take the policy: a step that went further is drawn back.

For: PPO's clip ends the gain of a token whose own ratio has moved enough, and bounds nothing else:
weights are shared by all tokens, Adam's steps are as long for a small gradient as for a large one,
and what the last minibatch does meets no clip. A policy of near-certain tokens can so lose in one
iteration what it learned in ten (docs/DEMONSTRATION.md).
Not covered: a lasting pull towards one policy (`kl_weight`); what is done once a run has fallen
(`monitor.py`).
Invariant: afterwards the weights lie on the line from those before to those that the updates made.
Optimizers are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuagent.training.metrics import Metrics

HALVINGS = 6
"""A step of which a sixty-fourth still goes too far is not made at all."""


def remembered(model: Any) -> list[Tensor]:
    """What is trained, as it stands now: a copy, of this process' shards where it is sharded."""
    return [p.detach().clone() for p in trained(model)]


def draw_back(
    model: Any, before: Sequence[Tensor], far: Callable[[], float], limit: float
) -> Metrics:
    """Halve the step since `before` until `far()`, the KL in nats a token, is within `limit`.

    The line search of TRPO (Schulman et al. 2015, appendix C), after the step instead of in it.
    Returns `kl` as it is left and the share of the step that was `kept`. Several processes must be
    told the same distances.
    """
    for halvings in range(HALVINGS + 1):
        kl = far()
        if kl <= limit:  # never true of what is not a number
            return {"kl": kl, "kept": 0.5**halvings}
        mix(model, before, 0.5)
    mix(model, before, 0.0)
    return {"kl": 0.0, "kept": 0.0}


@torch.no_grad()
def mix(model: Any, before: Sequence[Tensor], share: float) -> None:
    """Of the step since `before` leave `share`."""
    for now, then in zip(trained(model), before, strict=True):
        now.copy_(then + share * (now - then) if share else then)


def trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def kl_between(old: Tensor, new: Tensor, action: Tensor) -> float:
    """KL(old || new) in nats an action token, of tokens sampled from `old`: the mean of
    r - 1 - log r with r = new / old (http://joschu.net/blog/kl-approx.html, k3). All [B, L]."""
    d = (new - old)[action].double()
    return float((d.exp() - 1 - d).mean())
