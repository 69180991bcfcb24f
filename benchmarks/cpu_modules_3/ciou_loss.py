"""The complete IoU loss of boxes given by center and size."""

import math

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-7

    def forward(self, made: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        (x1, y1, w1, h1), (x2, y2, w2, h2) = made.unbind(-1), target.unbind(-1)
        left1, right1, top1, bottom1 = x1 - w1 / 2, x1 + w1 / 2, y1 - h1 / 2, y1 + h1 / 2
        left2, right2, top2, bottom2 = x2 - w2 / 2, x2 + w2 / 2, y2 - h2 / 2, y2 + h2 / 2
        width = (torch.minimum(right1, right2) - torch.maximum(left1, left2)).clamp(min=0)
        height = (torch.minimum(bottom1, bottom2) - torch.maximum(top1, top2)).clamp(min=0)
        inner = width * height
        iou = inner / (w1 * h1 + w2 * h2 - inner + self.eps)
        outer_w = torch.maximum(right1, right2) - torch.minimum(left1, left2)
        outer_h = torch.maximum(bottom1, bottom2) - torch.minimum(top1, top2)
        diagonal = outer_w**2 + outer_h**2 + self.eps
        distance = (x1 - x2) ** 2 + (y1 - y2) ** 2
        shape = (torch.atan(w2 / (h2 + self.eps)) - torch.atan(w1 / (h1 + self.eps))) ** 2
        v = 4 / math.pi**2 * shape
        alpha = v / (1 - iou + v + self.eps)
        loss = 1 - (iou - distance / diagonal - alpha * v)
        return (loss * weight).sum() / weight.sum()


def get_inputs() -> list[Tensor]:
    return [torch.rand(4000, 4) + 0.1, torch.rand(4000, 4) + 0.1, torch.rand(4000)]


def get_init_inputs() -> list[object]:
    return []
