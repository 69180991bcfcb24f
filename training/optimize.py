"""The optimizer that the three stages share: AdamW, warm-up then constant, clipped norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cuagent.training.parallel import add_gradients


@dataclass(frozen=True)
class AdamW:
    """Weight decay acts on matrices only."""

    lr: float
    warmup: int = 0
    """Steps over which the rate rises from 0."""
    decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0


def make_optimizer(model: Any, settings: AdamW) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))


def apply_gradients(
    model: Any, optimizer: torch.optim.Optimizer, settings: AdamW, step: int
) -> float:
    """One update from the gradients of all processes; returns their norm before clipping."""
    add_gradients(model)
    rate = settings.lr * min(1.0, (step + 1) / settings.warmup) if settings.warmup else settings.lr
    for group in optimizer.param_groups:
        group["lr"] = rate
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)
