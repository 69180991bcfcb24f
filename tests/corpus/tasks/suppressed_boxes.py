"""Mask of the kept boxes, in order of rank: a box is kept if no kept box before it overlaps it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, boxes):
        low, high = boxes[:, :2], boxes[:, 2:]
        sizes = (high - low).clamp(min=0)
        inter = torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)
        area, both = sizes.prod(-1), inter.clamp(min=0).prod(-1)
        over = both > self.share * (area[:, None] + area - both)
        kept = torch.ones(boxes.shape[0], dtype=torch.bool, device=boxes.device)
        later = torch.arange(boxes.shape[0], device=boxes.device)
        for k in range(boxes.shape[0]):
            kept = kept & ~(over[k] & kept[k] & (later > k))
        return kept


def get_inputs():
    low = torch.rand(40, 2) * 4
    return [torch.cat([low, low + 0.5 + torch.rand(40, 2)], 1)]


def get_init_inputs():
    return [0.25]
