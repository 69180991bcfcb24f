"""Update model weights in all stages: AdamW, warm-up, constant or falling learning rate, clipped
gradient norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cuagent.training.config import above, at_least, below
from cuagent.training.data.segments import RecordError
from cuagent.training.policy.placement import sum_gradients, unshard


@dataclass(frozen=True)
class AdamW:
    """Settings of the AdamW optimizer. Weight decay applies to matrices only."""

    lr: float
    warmup: int = 0
    """Number of steps over which the learning rate rises from 0."""
    last: int = 0
    """Step at which the learning rate reaches 0; it falls linearly from step `last` / 2 on. 0: the
    rate stays constant."""
    decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, self, "lr", "warmup", "last", "decay", "beta1", "beta2")
        below(1, self, "beta1", "beta2")
        above(0, self, "clip_norm")  # a negative norm would reverse the gradient


def make_optimizer(model: Any, settings: AdamW) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, settings.lr, betas, fused=model.device.type == "cuda")


def apply_gradients(
    model: Any, optimizer: torch.optim.Optimizer, settings: AdamW, step: int
) -> float:
    """Make one optimizer step from the gradients of all processes; return the gradient norm before
    clipping.

    The step is skipped if the norm is not finite: Adam's moments would never become finite again.
    Gradients are cleared. `step` determines the learning rate.
    """
    sum_gradients(model)
    rate = settings.lr * rate_factor(settings, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    clipped = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
    norm = float(unshard(clipped))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def weight_norm(model: Any) -> float:
    """Return the norm of all trainable weights; NaN or infinite if a weight is."""
    trained = [p.detach() for p in model.parameters() if p.requires_grad]
    return float(unshard(torch.nn.utils.get_total_norm(trained)))


def require_finite(model: Any, loss: float, rate: str) -> None:
    """Raise RecordError if the loss or the weights are not finite; `rate` names the setting to
    lower."""
    if not (math.isfinite(loss) and math.isfinite(weight_norm(model))):
        raise RecordError(
            f"loss or weights are not finite (loss {loss:.4g}), so the model is not saved; "
            f"start again with another --out and a smaller {rate}"
        )


def rate_factor(settings: AdamW, step: int) -> float:
    """Return the factor (0 to 1) by which the learning rate is multiplied at a step; steps start at
    0."""
    up = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    down = min(1.0, max(0.0, 2 - 2 * step / settings.last)) if settings.last else 1.0
    return up * down
