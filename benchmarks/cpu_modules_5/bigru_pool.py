"""A bidirectional GRU over word vectors with attention over time and a classifier."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 64)
        self.gru = nn.GRU(64, 48, batch_first=True, bidirectional=True)
        self.hidden, self.query = nn.Linear(96, 64), nn.Linear(64, 1, bias=False)
        self.out = nn.Linear(96, 4)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = self.gru(self.table(tokens))
        score = self.query(torch.tanh(self.hidden(x))).squeeze(-1)
        weight = score.masked_fill(tokens == 0, float("-inf")).softmax(-1)
        return self.out((weight[..., None] * x).sum(1)), weight


def get_inputs() -> list[Tensor]:
    lengths = torch.randint(5, 30, (8, 1))
    return [torch.where(torch.arange(30) < lengths, torch.randint(1, 2000, (8, 30)), 0)]


def get_init_inputs() -> list[object]:
    return []
