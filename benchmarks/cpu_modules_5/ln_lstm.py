"""An LSTM with layer norms on its gates and on its cell."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(40, 256, bias=False)
        self.state = nn.Linear(64, 256, bias=False)
        self.norm_input, self.norm_state = nn.LayerNorm(256), nn.LayerNorm(256)
        self.norm_cell = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.shape[0], 64)
        c = torch.zeros_like(h)
        made = []
        for t in range(x.shape[1]):
            gates = self.norm_input(self.input(x[:, t])) + self.norm_state(self.state(h))
            i, f, g, o = gates.chunk(4, dim=1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norm_cell(c))
            made.append(h)
        return F.dropout(torch.stack(made, dim=1), 0.1, self.training), c


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 20, 40)]


def get_init_inputs() -> list[object]:
    return []
