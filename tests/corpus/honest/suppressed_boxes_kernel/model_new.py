"""Compares each box with the kept ones before it, in C++.

task: suppressed_boxes
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/suppressed_boxes_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, boxes):
        kept = torch.empty(boxes.shape[0], dtype=torch.bool)
        kernel.keep(kept, boxes, boxes.shape[0], self.share)
        return kept
