"""A decoder of an autoencoder for latent diffusion, one latent of 32 x 32, in fp16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, before, eps=1e-6)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm2 = nn.GroupNorm(32, after, eps=1e-6)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.shortcut(x) + h


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.norm(x)
        q = self.q(y).reshape(b, c, h * w).permute(0, 2, 1)
        k = self.k(y).reshape(b, c, h * w)
        v = self.v(y).reshape(b, c, h * w)
        weights = torch.softmax(torch.bmm(q, k) * c**-0.5, dim=2)
        return x + self.out(torch.bmm(v, weights.permute(0, 2, 1)).reshape(b, c, h, w))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 512, 3, padding=1)
        self.middle = nn.Sequential(Block(512, 512), Attention(512), Block(512, 512))
        self.ups = nn.ModuleList()
        channels = 512
        for after in (512, 256, 128):
            self.ups.append(
                nn.Sequential(
                    Block(channels, after),
                    nn.Upsample(scale_factor=2.0, mode="nearest"),
                    nn.Conv2d(after, after, 3, padding=1),
                )
            )
            channels = after
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.last = nn.Conv2d(channels, 3, 3, padding=1)
        self.to(torch.float16).eval()

    def forward(self, z: Tensor) -> Tensor:
        h = self.middle(self.first(z))
        for up in self.ups:
            h = up(h)
        return torch.tanh(self.last(F.silu(self.norm(h))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 4, 32, 32, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
