"""The loss of depth from video: local SSIM by average pools, and smoothness aware of edges."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = 0.85

    def ssim(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = (F.pad(t, (1, 1, 1, 1), mode="reflect") for t in (x, y))
        mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
        sx = F.avg_pool2d(x * x, 3, 1) - mx * mx
        sy = F.avg_pool2d(y * y, 3, 1) - my * my
        sxy = F.avg_pool2d(x * y, 3, 1) - mx * my
        above = (2 * mx * my + 1e-4) * (2 * sxy + 9e-4)
        below = (mx * mx + my * my + 1e-4) * (sx + sy + 9e-4)
        return ((1 - above / below) / 2).clamp(0, 1)

    def forward(self, made: Tensor, image: Tensor, depth: Tensor) -> Tensor:
        error = (made - image).abs().mean(1, keepdim=True)
        photometric = self.alpha * self.ssim(made, image).mean(1, True) + (1 - self.alpha) * error
        d = depth / (depth.mean((2, 3), keepdim=True) + 1e-7)
        dx, dy = (d[..., 1:] - d[..., :-1]).abs(), (d[..., 1:, :] - d[..., :-1, :]).abs()
        ix = (image[..., 1:] - image[..., :-1]).abs().mean(1, keepdim=True)
        iy = (image[..., 1:, :] - image[..., :-1, :]).abs().mean(1, keepdim=True)
        smooth = (dx * torch.exp(-ix)).mean() + (dy * torch.exp(-iy)).mean()
        return photometric.mean() + 0.1 * smooth


def get_inputs() -> list[Tensor]:
    return [torch.rand(2, 3, 64, 80), torch.rand(2, 3, 64, 80), torch.rand(2, 1, 64, 80) + 0.1]


def get_init_inputs() -> list[object]:
    return []
