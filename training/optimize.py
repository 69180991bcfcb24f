"""The optimizer of all stages: AdamW, warm-up, then constant or falling, clipped norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cuagent.training.config import above, at_least, below
from cuagent.training.placement import sum_gradients, unshard
from cuagent.training.segments import RecordError


@dataclass(frozen=True)
class AdamW:
    """Weight decay acts on matrices only."""

    lr: float
    warmup: int = 0
    """Steps over which the rate rises from 0."""
    last: int = 0
    """The step at which the rate is back at 0, having fallen since half of it; 0 keeps the rate."""
    decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, self, "lr", "warmup", "last", "decay", "beta1", "beta2")
        below(1, self, "beta1", "beta2")
        above(0, self, "clip_norm")  # less would turn the gradient round


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
    """One update from the gradients of all processes; returns their norm before clipping.

    Where that is not finite nothing is applied: Adam's moments would keep it for good.
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
    """Of all that is trained; not finite once a single weight is not."""
    trained = [p.detach() for p in model.parameters() if p.requires_grad]
    return float(unshard(torch.nn.utils.get_total_norm(trained)))


def require_finite(model: Any, loss: float, rate: str) -> None:
    """Before a model is kept. Raises RecordError that names the setting of the `rate`."""
    if not (math.isfinite(loss) and math.isfinite(weight_norm(model))):
        raise RecordError(
            f"what was learned is no number any more (loss {loss:.4g}) and is not kept; "
            f"begin anew with another --out and a smaller {rate}"
        )


def rate_factor(settings: AdamW, step: int) -> float:
    """What of the rate holds at a step, counted from 0."""
    up = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    down = min(1.0, max(0.0, 2 - 2 * step / settings.last)) if settings.last else 1.0
    return up * down
