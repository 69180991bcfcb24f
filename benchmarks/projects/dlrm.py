"""Rank items with embeddings, their pairwise products and two networks (DLRM)."""

from itertools import pairwise

import torch
from common import exact, finished, optimized, options
from torch import Tensor, nn


def mlp(sizes: list[int]) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self, tables: int, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(tables))
        self.bottom = mlp([13, 128, dim])
        pairs = (tables + 1) * tables // 2
        self.top = mlp([dim + pairs, 128, 64, 1])
        lower = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("lower", lower, persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        columns = [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        features = torch.stack([x, *columns], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, self.lower[0], self.lower[1]]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


def main() -> None:
    given = options(steps=16)
    rows, batch = (100000, 32768) if given.device == "cuda" else (10000, 1024)
    model = optimized(DLRM(16, rows, 32).eval().to(given.device), given)
    dense = exact(torch.randn(given.batches, batch, 13, device=given.device), given)
    sparse = torch.randint(rows, (given.batches, batch, 16), device=given.device)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        return model(dense[number], sparse[number])

    finished(step, given)


if __name__ == "__main__":
    main()
