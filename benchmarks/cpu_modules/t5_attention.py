"""Self-attention of T5 with a bias by the bucket of the distance."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.norm = nn.RMSNorm(128, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(128, 128, bias=False) for _ in range(4))
        self.bias = nn.Embedding(32, 4)

    def buckets(self, n: int) -> Tensor:
        position = torch.arange(n)
        distance = position[None, :] - position[:, None]
        bucket = (distance > 0).long() * 16
        distance = distance.abs()
        large = 8 + (torch.log(distance.float() / 8) / math.log(16) * 8).long()
        large = torch.min(large, torch.full_like(large, 15))
        return bucket + torch.where(distance < 8, distance, large)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        y = self.norm(x)
        q, k, v = (
            m(y).view(b, n, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.bias(self.buckets(n)).permute(2, 0, 1).unsqueeze(0)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, c)
        return x + self.o(y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 80, 128)]


def get_init_inputs() -> list[object]:
    return []
