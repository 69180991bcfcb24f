"""The binary cross entropy of logits; a buffer holds the weights of positive labels."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("pos_weight", torch.ones(classes))

    def forward(self, x, target):
        return nn.functional.binary_cross_entropy_with_logits(x, target, pos_weight=self.pos_weight)


def get_inputs():
    return [torch.randn(20, 16), (torch.rand(20, 16) > 0.6).float()]


def get_init_inputs():
    return [16]
