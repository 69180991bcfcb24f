"""One element after the other; masked elements are skipped.

task: causal
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        y = torch.empty_like(q)
        for i in range(q.shape[2]):
            seen = i + 1
            scores = (q[:, :, i : i + 1] * k[:, :, :seen]).sum(-1) / 4.0
            parts = (scores - scores.amax(-1, keepdim=True)).exp()
            y[:, :, i] = (parts[..., None] * v[:, :, :seen]).sum(2) / parts.sum(-1, keepdim=True)
        return y
