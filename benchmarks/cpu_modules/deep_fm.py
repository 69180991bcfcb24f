"""A DeepFM click model with one embedding for all fields."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(4000, 16), nn.Embedding(4000, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("offsets", torch.arange(20) * 200)
        self.mlp = nn.Sequential(
            nn.Linear(320, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets
        e = self.embedding(x)
        square_of_sum = e.sum(dim=1) ** 2
        sum_of_square = (e**2).sum(dim=1)
        fm = 0.5 * (square_of_sum - sum_of_square).sum(dim=1, keepdim=True)
        linear = self.linear(x).sum(dim=1) + self.bias
        return torch.sigmoid(linear + fm + self.mlp(e.flatten(1))).squeeze(1)


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 200, (512, 20))]


def get_init_inputs() -> list[object]:
    return []
