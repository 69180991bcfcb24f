"""Focal loss and generalised IoU of a detector."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.gamma = 0.25, 2.0

    def giou(self, a: Tensor, b: Tensor) -> Tensor:
        area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
        area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        inner = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0)
        outer = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).clamp(min=0)
        both = inner[:, 0] * inner[:, 1]
        union = area_a + area_b - both
        hull = outer[:, 0] * outer[:, 1]
        return both / (union + 1e-7) - (hull - union) / (hull + 1e-7)

    def forward(self, logits: Tensor, boxes: Tensor, classes: Tensor, target: Tensor) -> Tensor:
        labels = F.one_hot(classes, logits.shape[-1]).to(logits.dtype)
        p = torch.sigmoid(logits)
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        p_t = p * labels + (1 - p) * (1 - labels)
        weight = self.alpha * labels + (1 - self.alpha) * (1 - labels)
        focal = (weight * (1 - p_t) ** self.gamma * loss).sum() / logits.shape[0]
        return focal + (1 - self.giou(boxes, target)).mean()


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(2000, 20),
        torch.rand(2000, 4).cumsum(1),
        torch.randint(0, 20, (2000,)),
        torch.rand(2000, 4).cumsum(1),
    ]


def get_init_inputs() -> list[object]:
    return []
