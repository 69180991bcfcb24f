"""Boxes from the heat maps of CenterNet: peaks by max pooling, the best 50, their sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 50

    def forward(self, heat: Tensor, size: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        n, _, h, w = heat.shape
        score = heat.sigmoid()
        score = score * (F.max_pool2d(score, 3, 1, 1) == score)
        best, index = score.flatten(1).topk(self.count)
        place = index % (h * w)
        pick = place[:, None, :].expand(n, 2, self.count)
        wh = size.flatten(2).gather(2, pick).exp()
        shift = offset.flatten(2).gather(2, pick).sigmoid()
        x = (place % w) + shift[:, 0]
        y = (place // w) + shift[:, 1]
        half_w, half_h = wh[:, 0] / 2, wh[:, 1] / 2
        box = torch.stack((x - half_w, y - half_h, x + half_w, y + half_h), dim=-1) * 4
        return box.clamp(min=0), best


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 20, 64, 64), torch.randn(2, 2, 64, 64), torch.randn(2, 2, 64, 64)]


def get_init_inputs() -> list[object]:
    return []
