"""A shifted block of Swin tiny in its first stage, in fp16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SIDE, WIDTH, HEADS, WINDOW, SHIFT = 64, 56, 96, 3, 7, 3
AREA = WINDOW * WINDOW


def partition(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, AREA, c)


def joined(windows: Tensor, h: int, w: int) -> Tensor:
    x = windows.view(-1, h // WINDOW, w // WINDOW, WINDOW, WINDOW, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, h, w, windows.shape[-1])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, HEADS) * 0.02)
        grid = torch.stack(
            torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")
        )
        offsets = grid.flatten(1)[:, :, None] - grid.flatten(1)[:, None, :] + WINDOW - 1
        self.register_buffer("index", offsets[0] * (2 * WINDOW - 1) + offsets[1])
        regions = torch.zeros(1, SIDE, SIDE, 1)
        cuts = (slice(0, -WINDOW), slice(-WINDOW, -SHIFT), slice(-SHIFT, None))
        for k, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
            regions[:, rows, columns] = k
        labels = partition(regions).squeeze(-1)
        differ = labels[:, None, :] != labels[:, :, None]
        self.register_buffer("mask", torch.where(differ, -100.0, 0.0))
        self.half()

    def attend(self, x: Tensor) -> Tensor:
        count, n, c = x.shape
        qkv = self.qkv(x).reshape(count, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        bias = self.table[self.index.view(-1)].view(n, n, HEADS).permute(2, 0, 1)
        windows = self.mask.shape[0]
        mask = (self.mask[:, None] + bias).repeat(count // windows, 1, 1, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(count, n, c))

    def forward(self, x: Tensor) -> Tensor:
        _, h, w, _ = x.shape
        y = torch.roll(self.norm1(x), shifts=(-SHIFT, -SHIFT), dims=(1, 2))
        y = joined(self.attend(partition(y)), h, w)
        x = x + torch.roll(y, shifts=(SHIFT, SHIFT), dims=(1, 2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIDE, SIDE, WIDTH).half()]


def get_init_inputs() -> list[object]:
    return []
