"""A decoder layer of Llama with grouped key and value heads, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.groups, self.size = 8, 2, 32
        self.norm1, self.norm2 = RMSNorm(256), RMSNorm(256)
        self.q = nn.Linear(256, 256, bias=False)
        self.k = nn.Linear(256, 64, bias=False)
        self.v = nn.Linear(256, 64, bias=False)
        self.o = nn.Linear(256, 256, bias=False)
        self.gate = nn.Linear(256, 688, bias=False)
        self.up = nn.Linear(256, 688, bias=False)
        self.down = nn.Linear(688, 256, bias=False)
        self.to(torch.bfloat16)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(b, n, self.groups, self.size).transpose(1, 2)
        v = self.v(x).view(b, n, self.groups, self.size).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.heads // self.groups, dim=1)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(b, n, -1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(2, 96, 256).bfloat16(),
        torch.randn(96, 32).cos().bfloat16(),
        torch.randn(96, 32).sin().bfloat16(),
    ]


def get_init_inputs() -> list[object]:
    return []
