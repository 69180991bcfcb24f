"""A decoder with additive attention around a GRU cell, 12 steps of teacher forcing."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.query, self.key = nn.Linear(128, 64), nn.Linear(128, 64, bias=False)
        self.score = nn.Linear(64, 1, bias=False)
        self.cell = nn.GRUCell(192, 128)
        self.out = nn.Linear(128, 500)

    def forward(self, memory: Tensor, tokens: Tensor, state: Tensor) -> Tensor:
        keys = self.key(memory)
        words = self.embedding(tokens)
        outputs = []
        for t in range(tokens.shape[1]):
            energy = self.score(torch.tanh(self.query(state).unsqueeze(1) + keys)).squeeze(-1)
            context = torch.bmm(energy.softmax(-1).unsqueeze(1), memory).squeeze(1)
            state = self.cell(torch.cat((words[:, t], context), dim=-1), state)
            outputs.append(state)
        return self.out(torch.stack(outputs, dim=1)).log_softmax(-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 24, 128), torch.randint(0, 500, (8, 12)), torch.randn(8, 128)]


def get_init_inputs() -> list[object]:
    return []
