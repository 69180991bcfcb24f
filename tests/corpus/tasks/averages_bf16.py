"""Running means along rows of bfloat16."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        counts = torch.arange(1, x.shape[-1] + 1, device=x.device)
        return (x.float().cumsum(-1) / counts).to(x.dtype)


def get_inputs():
    return [torch.randn(6, 700, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
