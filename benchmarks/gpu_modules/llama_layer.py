"""A decoder layer of Llama 3 8B over 4096 tokens in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, WIDTH, INNER = 4096, 4096, 14336
HEADS, KEY_HEADS, SIZE = 32, 8, 128


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-b, a), dim=-1)


def repeated(x: Tensor) -> Tensor:
    b, heads, n, size = x.shape
    x = x[:, :, None].expand(b, heads, HEADS // KEY_HEADS, n, size)
    return x.reshape(b, HEADS, n, size)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.output_norm = RMSNorm(), RMSNorm()
        self.q = nn.Linear(WIDTH, HEADS * SIZE, bias=False, dtype=torch.bfloat16)
        self.k = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False, dtype=torch.bfloat16)
        self.v = nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False, dtype=torch.bfloat16)
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False, dtype=torch.bfloat16)
        self.gate = nn.Linear(WIDTH, INNER, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(WIDTH, INNER, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(INNER, WIDTH, bias=False, dtype=torch.bfloat16)
        self.to(torch.bfloat16)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, HEADS, SIZE).transpose(1, 2)
        k = self.k(x).view(b, n, KEY_HEADS, SIZE).transpose(1, 2)
        v = self.v(x).view(b, n, KEY_HEADS, SIZE).transpose(1, 2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, repeated(k), repeated(v), is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, n, HEADS * SIZE))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.input_norm(x), cos, sin)
        y = self.output_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs() -> list[Tensor]:
    rates = 500000.0 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
    angles = torch.outer(torch.arange(TOKENS).float(), rates).repeat(1, 2)[None]
    x = torch.randn(1, TOKENS, WIDTH).bfloat16()
    return [x, angles.cos().bfloat16(), angles.sin().bfloat16()]


def get_init_inputs() -> list[object]:
    return []
