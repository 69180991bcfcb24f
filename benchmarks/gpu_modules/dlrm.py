"""A DLRM of the Criteo data set's features: 26 bags of indices, products of all pairs, float32."""

import torch
from torch import Tensor, nn

BATCH, TABLES, ROWS, WIDTH, HOT, DENSE = 8192, 26, 40000, 128, 4, 13


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, WIDTH), nn.ReLU(),
        )  # fmt: skip
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
            nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid(),
        )  # fmt: skip
        rows, columns = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [table(indices[k]) for k, table in enumerate(self.tables)]
        features = torch.stack([x, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat((x, products[:, self.rows, self.columns]), dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.rand(BATCH, DENSE), torch.randint(0, ROWS, (TABLES, BATCH, HOT))]


def get_init_inputs() -> list[object]:
    return []
