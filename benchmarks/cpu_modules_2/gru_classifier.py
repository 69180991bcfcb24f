"""A review classifier with a GRU and mean pooling over a mask."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 48, padding_idx=0)
        self.gru = nn.GRU(48, 64, num_layers=2, batch_first=True)
        self.out = nn.Linear(64, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.gru(self.embedding(tokens))
        mask = (tokens != 0).to(y.dtype).unsqueeze(-1)
        return self.out((y * mask).sum(1) / mask.sum(1).clamp(min=1.0))


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 1000, (16, 24))]


def get_init_inputs() -> list[object]:
    return []
