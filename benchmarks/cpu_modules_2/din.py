"""Target attention of a Deep Interest Network."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 16)
        self.attend = nn.Sequential(nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 1))
        self.top = nn.Sequential(nn.Linear(48, 32), nn.PReLU(), nn.Linear(32, 1))

    def forward(self, target: Tensor, history: Tensor) -> Tensor:
        t, h = self.items(target), self.items(history)
        q = t.unsqueeze(1).expand_as(h)
        scores = self.attend(torch.cat((q, h, q - h, q * h), dim=-1)).squeeze(-1)
        scores = scores.masked_fill(history == 0, -1e9).softmax(-1)
        interest = (scores.unsqueeze(-1) * h).sum(1)
        return torch.sigmoid(self.top(torch.cat((t, interest, t * interest), dim=-1))).squeeze(-1)


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 2000, (64,)), torch.randint(0, 2000, (64, 30))]


def get_init_inputs() -> list[object]:
    return []
