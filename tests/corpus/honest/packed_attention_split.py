"""One library call per sequence.

task: packed_attention
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def forward(self, q, k, v, bounds):
        ends = [0, *bounds[1:].tolist(), q.shape[0]]
        parts = []
        for begin, end in pairwise(ends):
            if begin < end:
                a, b, c = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
                y = functional.scaled_dot_product_attention(a, b, c)
                parts.append(y[0].transpose(0, 1))
        return torch.cat(parts)
