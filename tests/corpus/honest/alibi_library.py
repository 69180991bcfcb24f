"""Adds the penalty as a mask to the library's attention.

task: alibi
"""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, q, k, v, positions):
        far = (positions[:, None] - positions[None, :]).abs()
        mask = -self.slopes[:, None, None] * far
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.35)
