"""One product computes all gates from input and state.

task: lstm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(width, hidden)

    def forward(self, x, h, c):
        cell = self.cell
        gates = (
            torch.cat([x, h], 1) @ torch.cat([cell.weight_ih, cell.weight_hh], 1).t()
            + cell.bias_ih
            + cell.bias_hh
        )
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
