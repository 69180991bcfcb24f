"""The largest share and the largest remaining share; the last of equal ones.

task: experts
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(24, 8, bias=False)

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        behind = shares.flip(-1)
        first = behind.argmax(-1, keepdim=True)
        second = behind.scatter(-1, first, -1.0).argmax(-1, keepdim=True)
        taken = torch.bincount(7 - torch.cat([first, second]).reshape(-1), minlength=8)
        return 4 / x.shape[0] * (taken * shares.mean(0)).sum(), taken
