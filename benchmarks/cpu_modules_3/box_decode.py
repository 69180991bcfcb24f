"""Boxes of a detector from offsets to anchors, clipped, with the best class of each."""

import math

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = 320.0
        self.register_buffer("scales", torch.tensor([0.1, 0.1, 0.2, 0.2]))

    def forward(self, offsets: Tensor, logits: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        widths = anchors[:, 2] - anchors[:, 0]
        heights = anchors[:, 3] - anchors[:, 1]
        centers = torch.stack((anchors[:, 0] + 0.5 * widths, anchors[:, 1] + 0.5 * heights), -1)
        extents = torch.stack((widths, heights), -1)
        offsets = offsets * self.scales
        middle = offsets[..., :2] * extents + centers
        size = torch.exp(offsets[..., 2:].clamp(max=math.log(1000 / 16))) * extents
        boxes = torch.cat((middle - 0.5 * size, middle + 0.5 * size), dim=-1)
        boxes = boxes.clamp(0, self.size)
        scores, labels = logits.softmax(-1)[..., 1:].max(-1)
        sides = boxes[..., 2:] - boxes[..., :2]
        keep = (sides > 1.0).all(-1) & (scores > 0.05)
        return boxes, torch.where(keep, scores, -1.0), labels


def get_inputs() -> list[Tensor]:
    corner = torch.rand(1500, 2) * 280
    anchors = torch.cat((corner, corner + 8 + torch.rand(1500, 2) * 32), -1)
    return [torch.randn(2, 1500, 4), torch.randn(2, 1500, 12), anchors]


def get_init_inputs() -> list[object]:
    return []
