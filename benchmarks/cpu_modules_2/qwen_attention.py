"""Attention of Qwen3 with norms of queries and keys, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(192, 256, bias=False), nn.Linear(192, 128, bias=False)
        self.v, self.o = nn.Linear(192, 128, bias=False), nn.Linear(256, 192, bias=False)
        self.q_norm, self.k_norm = Norm(32), Norm(32)
        frequency = 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32)
        self.register_buffer("frequency", frequency)
        self.to(torch.bfloat16)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        angles = torch.arange(n)[:, None].float() * self.frequency.float()
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q = self.rotate(self.q_norm(self.q(x).view(b, n, 8, 32)).transpose(1, 2), cos, sin)
        k = self.rotate(self.k_norm(self.k(x).view(b, n, 4, 32)).transpose(1, 2), cos, sin)
        v = self.v(x).view(b, n, 4, 32).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 64, 192).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
