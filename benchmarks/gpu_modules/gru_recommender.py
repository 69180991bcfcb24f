"""A recommender for sessions: item embeddings, a GRU and scores of all items, in float32."""

import torch
from torch import Tensor, nn

BATCH, LENGTH, ITEMS, WIDTH = 256, 50, 20000, 256


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.bias = nn.Parameter(torch.zeros(ITEMS))

    def forward(self, session: Tensor) -> Tensor:
        states, _ = self.gru(self.items(session))
        return self.norm(states[:, -1]) @ self.items.weight.t() + self.bias


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, ITEMS, (BATCH, LENGTH))]


def get_init_inputs() -> list[object]:
    return []
