"""A GRU of two layers with a linear head over 64 sequences of 128 in fp32."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        return self.head(torch.relu(states))


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 128, 128)]


def get_init_inputs() -> list[object]:
    return []
