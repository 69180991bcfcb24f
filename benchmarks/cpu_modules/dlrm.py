"""A small DLRM with bags of indices and products of all pairs of features."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(68, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        rows, columns = torch.tril_indices(9, 9, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = [table(indices[:, k]) for k, table in enumerate(self.tables)]
        features = torch.stack([x, *found], dim=1)
        pairs = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat((x, pairs[:, self.rows, self.columns]), dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(256, 13), torch.randint(0, 1000, (256, 8, 4))]


def get_init_inputs() -> list[object]:
    return []
