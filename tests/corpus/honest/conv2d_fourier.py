"""A product of spectra, whose rounding error is uniform over each plane.

task: conv2d
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        height, width = x.shape[-2] + 2, x.shape[-1] + 2
        inputs = torch.fft.rfft2(x, s=(height, width))
        taps = torch.fft.rfft2(self.conv.weight.flip(-1, -2), s=(height, width))
        spectrum = torch.einsum("nchw,ochw->nohw", inputs, taps)
        y = torch.fft.irfft2(spectrum, s=(height, width))[..., 1:-1, 1:-1]
        return y + self.conv.bias[:, None, None]
