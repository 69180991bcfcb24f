"""Sigmoid focal loss of RetinaNet over the anchors of eight images in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, ANCHORS, CLASSES = 8, 76725, 80


class Model(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        right = p * targets + (1 - p) * (1 - targets)
        weight = 0.25 * targets + 0.75 * (1 - targets)
        loss = weight * loss * (1 - right) ** 2
        found = targets.sum(dim=(1, 2)).clamp(min=1.0)
        return (loss.sum(dim=(1, 2)) / found).mean()


def get_inputs() -> list[Tensor]:
    logits = torch.randn(BATCH, ANCHORS, CLASSES) - 2.0
    return [logits, (torch.rand(BATCH, ANCHORS, CLASSES) < 0.002).float()]


def get_init_inputs() -> list[object]:
    return []
