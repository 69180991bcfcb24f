"""A decoder layer of Qwen3 4B in bf16, with norms of queries and keys."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, INNER = 2, 2048, 2560, 9728
HEADS, KEY_HEADS, SIZE = 32, 8, 128


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False)
        self.v = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False)
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.q_norm, self.k_norm = RMSNorm(SIZE), RMSNorm(SIZE)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_norm(self.q(x).view(b, n, HEADS, SIZE)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(b, n, KEY_HEADS, SIZE)).transpose(1, 2)
        v = self.v(x).view(b, n, KEY_HEADS, SIZE).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, n, HEADS * SIZE))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.to(torch.bfloat16)
        self.register_buffer("rates", 1e6 ** (-torch.arange(0, SIZE, 2).float() / SIZE), False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, :, None].float() * self.rates
        x = x + self.attention(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs() -> list[Tensor]:
    positions = torch.arange(TOKENS).repeat(BATCH, 1)
    return [torch.randn(BATCH, TOKENS, WIDTH).bfloat16(), positions]


def get_init_inputs() -> list[object]:
    return []
