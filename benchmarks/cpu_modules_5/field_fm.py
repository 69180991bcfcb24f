"""A field-aware factorization machine over categories with a linear part."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fields, sizes = 10, 100
        self.register_buffer("offsets", torch.arange(self.fields) * sizes)
        self.linear = nn.Embedding(self.fields * sizes, 1)
        self.tables = nn.ModuleList(
            nn.Embedding(self.fields * sizes, 8) for _ in range(self.fields)
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets
        v = [table(x) for table in self.tables]
        pairs = [
            v[j][:, i] * v[i][:, j] for i in range(self.fields) for j in range(i + 1, self.fields)
        ]
        score = torch.stack(pairs, dim=1).sum((1, 2))
        return torch.sigmoid(self.linear(x).sum((1, 2)) + score + self.bias)


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 100, (256, 10))]


def get_init_inputs() -> list[object]:
    return []
