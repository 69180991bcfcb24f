"""Attention of Llama 3 8B for one new token of 32 sequences with a cache of 4095, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, CACHED, WIDTH, HEADS, KEY_HEADS, SIZE = 32, 4095, 4096, 32, 8, 128


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.to(torch.bfloat16)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        b = x.shape[0]
        widths = (HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE)
        q, k, v = self.qkv(self.norm(x)).split(widths, dim=-1)
        q = q.view(b, 1, HEADS, SIZE).transpose(1, 2)
        k, v = (t.view(b, 1, KEY_HEADS, SIZE).transpose(1, 2) for t in (k, v))
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
        y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(b, 1, HEADS * SIZE)), keys, values


def get_inputs() -> list[Tensor]:
    angles = torch.rand(BATCH, 1, 1, SIZE // 2).repeat(1, 1, 1, 2) * 6.28
    cache = (BATCH, KEY_HEADS, CACHED, SIZE)
    return [
        torch.randn(BATCH, 1, WIDTH).bfloat16(),
        torch.randn(cache, dtype=torch.bfloat16),
        torch.randn(cache, dtype=torch.bfloat16),
        angles.cos().bfloat16(),
        angles.sin().bfloat16(),
    ]


def get_init_inputs() -> list[object]:
    return []
