"""Products by torch, gates fused in C++.

task: lstm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/lstm_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(width, hidden)

    def forward(self, x, h, c):
        cell = self.cell
        gates = torch.addmm(cell.bias_ih, x, cell.weight_ih.t()) + torch.addmm(
            cell.bias_hh, h, cell.weight_hh.t()
        )
        new_h, new_c = torch.empty_like(h), torch.empty_like(c)
        kernel.gates(new_h, new_c, gates, c, c.shape[0], c.shape[1])
        return new_h, new_c
