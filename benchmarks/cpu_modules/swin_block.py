"""Attention of a Swin block in shifted windows, with relative positions and a mask."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.window, self.shift, self.heads = 7, 3, 4
        self.norm = nn.LayerNorm(96)
        self.qkv, self.proj = nn.Linear(96, 288), nn.Linear(96, 96)
        self.table = nn.Parameter(torch.randn(169, 4) * 0.02)
        grid = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij"))
        offsets = grid.flatten(1)[:, :, None] - grid.flatten(1)[:, None, :]
        self.register_buffer("index", (offsets[0] + 6) * 13 + offsets[1] + 6)
        labels = torch.zeros(1, 28, 28, 1)
        cuts = (slice(0, -7), slice(-7, -3), slice(-3, None))
        for k, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
            labels[:, rows, columns] = k
        parts = self.partition(labels).squeeze(-1)
        mask = parts[:, None, :] - parts[:, :, None]
        self.register_buffer("mask", torch.where(mask != 0, -100.0, 0.0))

    def partition(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.view(b, h // 7, 7, w // 7, 7, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.partition(y)
        qkv = self.qkv(y).reshape(-1, 49, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * (c // self.heads) ** -0.5, qkv[1], qkv[2]
        bias = self.table[self.index.view(-1)].view(49, 49, -1).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) + bias.unsqueeze(0)
        windows = self.mask.shape[0]
        scores = scores.view(-1, windows, self.heads, 49, 49) + self.mask[None, :, None]
        weights = scores.view(-1, self.heads, 49, 49).softmax(dim=-1)
        y = self.proj((weights @ v).transpose(1, 2).reshape(-1, 49, c))
        y = y.view(b, h // 7, w // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 28, 28, 96)]


def get_init_inputs() -> list[object]:
    return []
