"""Winograd's F(2x2, 3x3): tiles of 4x4 are transformed, multiplied and transformed back.

task: conv2d
"""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        inputs = x.new_tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
        taps = x.new_tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
        outputs = x.new_tensor([[1, 1, 1, 0], [0, 1, -1, -1]])
        height, width = x.shape[-2:]
        rows, columns = -(-height // 2), -(-width // 2)
        padded = F.pad(x, (1, 2 * columns - width + 1, 1, 2 * rows - height + 1))
        tiles = padded.unfold(2, 4, 2).unfold(3, 4, 2)
        tiles = torch.einsum("ai,ncrsij,bj->ncrsab", inputs, tiles, inputs)
        weight = torch.einsum("ai,ocij,bj->ocab", taps, self.conv.weight, taps)
        product = torch.einsum("ncrsab,ocab->norsab", tiles, weight)
        y = torch.einsum("ia,norsab,jb->norisj", outputs, product, outputs)
        y = y.reshape(x.shape[0], -1, 2 * rows, 2 * columns)[..., :height, :width]
        return y + self.conv.bias[:, None, None]
