"""A block of GPT-2 with its own tanh form of GELU and a causal mask in a buffer."""

import math

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.norm1, self.norm2 = nn.LayerNorm(192), nn.LayerNorm(192)
        self.qkv, self.out = nn.Linear(192, 576), nn.Linear(192, 192)
        self.wide, self.narrow = nn.Linear(192, 768), nn.Linear(768, 192)
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, 128, 128)).bool())

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = torch.where(self.mask[:, :, :n, :n], scores, torch.finfo(scores.dtype).min)
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, n, c))

    def gelu(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.narrow(self.gelu(self.wide(self.norm2(x))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 96, 192)]


def get_init_inputs() -> list[object]:
    return []
