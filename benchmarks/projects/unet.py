"""Denoise images with the residual blocks of a diffusion UNet."""

import torch
import torch.nn.functional as F
from common import exact, finished, optimized, options
from torch import Tensor, nn


class ResBlock(nn.Module):
    def __init__(self, dim: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, dim), nn.GroupNorm(8, dim)
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)
        self.time = nn.Linear(time, dim)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(t))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, dim, 3, padding=1)
        self.embed = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.down = nn.ModuleList(ResBlock(dim, 128) for _ in range(2))
        self.middle = ResBlock(dim, 128)
        self.up = nn.ModuleList(ResBlock(dim, 128) for _ in range(2))
        self.last = nn.Conv2d(dim, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale = torch.exp(-torch.arange(32, device=t.device) / 4)
        angles = t[:, None] * scale
        code = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.first(x)
        for block in self.down:
            x = block(x, code)
        low = self.middle(F.avg_pool2d(x, 2), code)
        x = x + F.interpolate(low, scale_factor=2)
        for block in self.up:
            x = block(x, code)
        return self.last(x)


def main() -> None:
    given = options(steps=6)
    big = given.device == "cuda"
    model = optimized(UNet(128 if big else 32).eval().to(given.device), given)
    size = (16, 3, 64, 64) if big else (2, 3, 64, 64)
    noise = exact(torch.randn(size, device=given.device), given)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        x = noise
        for level in (900.0, 500.0, 100.0):
            x = x - 0.1 * model(x, x.new_full((len(x),), level + number))
        return x

    finished(step, given)


if __name__ == "__main__":
    main()
