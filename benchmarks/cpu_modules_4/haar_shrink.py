"""Denoising of images by two levels of Haar wavelets with a soft threshold."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.levels = 2
        self.threshold = nn.Parameter(torch.full((2, 1), 0.1))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x[..., 0::2, 0::2], x[..., 0::2, 1::2]
        c, d = x[..., 1::2, 0::2], x[..., 1::2, 1::2]
        details = torch.stack((a - b + c - d, a + b - c - d, a - b - c + d), dim=-1)
        return (a + b + c + d) / 2, details / 2

    def join(self, low: Tensor, details: Tensor) -> Tensor:
        h, v, g = details.unbind(-1)
        a, b, c, d = low + h + v + g, low - h + v - g, low + h - v - g, low - h - v + g
        return F.pixel_shuffle(torch.cat((a, b, c, d), dim=1) / 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in range(self.levels):
            x, details = self.split(x)
            limit = F.softplus(self.threshold[level])
            kept.append(details.sign() * F.relu(details.abs() - limit))
        for details in reversed(kept):
            x = self.join(x, details)
        return x


def get_inputs() -> list[Tensor]:
    return [torch.rand(4, 1, 96, 96)]


def get_init_inputs() -> list[object]:
    return []
