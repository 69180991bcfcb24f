"""The whole sequence in C++, one thread per row of the batch.

task: gru
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gru_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x):
        gru, hidden = self.gru, self.gru.hidden_size
        states = torch.empty(x.shape[0], x.shape[1], hidden)
        kernel.gru(
            states,
            x,
            gru.weight_ih_l0,
            gru.weight_hh_l0,
            gru.bias_ih_l0,
            gru.bias_hh_l0,
            *x.shape,
            hidden,
        )
        return states, states[:, -1][None]
