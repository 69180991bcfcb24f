"""Structural similarity of two images with a Gaussian window."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        g = torch.exp(-((torch.arange(11) - 5.0) ** 2) / 4.5)
        g = g / g.sum()
        self.register_buffer("window", (g[:, None] * g[None, :]).expand(3, 1, 11, 11).contiguous())

    def blur(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.window, padding=5, groups=3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mx, my = self.blur(x), self.blur(y)
        sx, sy = self.blur(x * x) - mx * mx, self.blur(y * y) - my * my
        sxy = self.blur(x * y) - mx * my
        top = (2 * mx * my + 1e-4) * (2 * sxy + 9e-4)
        return (top / ((mx * mx + my * my + 1e-4) * (sx + sy + 9e-4))).mean()


def get_inputs() -> list[Tensor]:
    return [torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)]


def get_init_inputs() -> list[object]:
    return []
