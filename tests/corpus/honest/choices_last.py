"""Returns the last of equal elements of a window; the product is a separate sum.

task: choices
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(24, 30)

    def forward(self, x):
        scores = (x[:, None, :] * self.scores.weight).sum(-1) + self.scores.bias
        best = scores.argmax(-1)
        padded = torch.full((x.shape[0], 26), float("-inf"))
        padded[:, 1:25] = x
        windows = padded.unfold(-1, 5, 2)
        places = 4 - windows.flip(-1).argmax(-1)
        peaks = windows.gather(-1, places[..., None])[..., 0]
        places = places + torch.arange(places.shape[1]) * 2 - 1
        so_far, when = x.clone(), torch.zeros(x.shape, dtype=torch.int64)
        for step in range(1, x.shape[1]):
            above = x[:, step] > so_far[:, step - 1]
            so_far[:, step] = torch.where(above, x[:, step], so_far[:, step - 1])
            when[:, step] = torch.where(above, step, when[:, step - 1])
        return best, peaks, places, so_far, when
