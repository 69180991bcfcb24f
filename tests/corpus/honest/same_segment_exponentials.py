"""Multiplies exponentials by a mask of equal segments.

task: same_segment
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, segments):
        same = (segments[:, None] == segments[None, :]).to(q.dtype)
        scores = q @ k.transpose(-2, -1) / 3
        top = scores.masked_fill(same == 0, -torch.inf).amax(-1, keepdim=True)
        weights = (scores - top).masked_fill(same == 0, -torch.inf).exp()
        return weights @ v / weights.sum(-1, keepdim=True)
