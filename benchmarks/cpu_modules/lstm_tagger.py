"""A tagger with word embeddings and a bidirectional LSTM."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 96, batch_first=True, bidirectional=True)
        self.norm, self.out = nn.LayerNorm(192), nn.Linear(192, 18)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.lstm(self.embedding(tokens))
        return F.log_softmax(self.out(self.norm(y)), dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 2000, (8, 32))]


def get_init_inputs() -> list[object]:
    return []
