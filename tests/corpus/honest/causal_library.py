"""The library function, which masks with minus infinity.

task: causal
"""

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
