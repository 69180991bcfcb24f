"""A spectrum in which weak frequencies are removed, and how many remain."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(length // 2 + 1))

    def forward(self, x):
        spectrum = torch.fft.rfft(x, norm="ortho")
        power = spectrum.real.square() + spectrum.imag.square()
        kept = power > power.mean(-1, keepdim=True) * self.gain
        return torch.where(kept, spectrum, torch.zeros_like(spectrum))


def get_inputs():
    return [torch.randn(4, 32)]


def get_init_inputs():
    return [32]
