"""Self-attention of T5 v1.1 large with relative position bias and padding, in bf16."""

import math

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, HEADS, SIZE, BUCKETS, FARTHEST = 16, 512, 1024, 16, 64, 32, 128


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        y = x * torch.rsqrt(variance + 1e-6)
        return self.weight * y.to(self.weight.dtype)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEADS * SIZE, bias=False) for _ in range(3))
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.bias = nn.Embedding(BUCKETS, HEADS)
        nn.init.normal_(self.q.weight, std=(WIDTH * SIZE) ** -0.5)
        self.to(torch.bfloat16)

    def buckets(self, n: int, device: torch.device) -> Tensor:
        half, exact = BUCKETS // 2, BUCKETS // 4
        position = torch.arange(n, device=device)
        distance = position[None, :] - position[:, None]
        bucket = (distance > 0).long() * half
        distance = distance.abs()
        far = torch.log(distance.float() / exact) / math.log(FARTHEST / exact) * (half - exact)
        far = (exact + far.long()).clamp(max=half - 1)
        return bucket + torch.where(distance < exact, distance, far)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = self.norm(x)
        q, k, v = (m(y).view(b, n, HEADS, SIZE).transpose(1, 2) for m in (self.q, self.k, self.v))
        bias = self.bias(self.buckets(n, x.device)).permute(2, 0, 1).unsqueeze(0)
        bias = bias + (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, HEADS * SIZE)
        return x + self.o(y)


def get_inputs() -> list[Tensor]:
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (BATCH, 1))
    mask = (torch.arange(TOKENS)[None] < lengths).long()
    return [torch.randn(BATCH, TOKENS, WIDTH).bfloat16(), mask]


def get_init_inputs() -> list[object]:
    return []
