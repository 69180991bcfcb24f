"""Uses the sum of squares of the signal for the mean power.

task: spectral_gate
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(length // 2 + 1))
        turn = torch.arange(length // 2 + 1)[:, None] * torch.arange(length) % length
        angle = -2 * torch.pi / length * turn.double()
        self.wave = torch.polar(torch.full_like(angle, length**-0.5), angle).to(torch.complex64)

    def forward(self, x):
        spectrum = x.to(torch.complex64) @ self.wave.to(x.device).T
        power = spectrum.real.square() + spectrum.imag.square()
        kept = power > power.mean(-1, keepdim=True) * self.gain
        return spectrum * kept
