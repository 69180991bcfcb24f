"""A layer of BERT with a padding mask, in bf16."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.q, self.k, self.v = (nn.Linear(256, 256) for _ in range(3))
        self.out, self.norm1 = nn.Linear(256, 256), nn.LayerNorm(256, eps=1e-12)
        self.wide, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.norm2 = nn.LayerNorm(256, eps=1e-12)
        self.to(torch.bfloat16)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + bias
        y = torch.matmul(scores.softmax(dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.norm1(self.out(y.view(x.shape)) + x)
        return self.norm2(self.narrow(F.gelu(self.wide(x))) + x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 64, 256).bfloat16(), (torch.rand(4, 64) > 0.1).long()]


def get_init_inputs() -> list[object]:
    return []
