"""Rotary embedding of queries and keys of Llama 3 8B in bf16, read from joined projections."""

import torch
from torch import Tensor, nn

TOKENS, HEADS, KEY_HEADS, SIZE = 4096, 32, 8, 128


def rotate_half(x: Tensor) -> Tensor:
    a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-b, a), dim=-1)


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q = q.view(1, -1, HEADS, SIZE).transpose(1, 2)
        k = k.view(1, -1, KEY_HEADS, SIZE).transpose(1, 2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def get_inputs() -> list[Tensor]:
    rates = 500000.0 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
    angles = torch.outer(torch.arange(TOKENS).float(), rates).repeat(1, 2)[None]
    return [
        torch.randn(1, TOKENS, HEADS * SIZE).bfloat16(),
        torch.randn(1, TOKENS, KEY_HEADS * SIZE).bfloat16(),
        angles.cos().bfloat16(),
        angles.sin().bfloat16(),
    ]


def get_init_inputs() -> list[object]:
    return []
