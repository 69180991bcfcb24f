"""Factors in fp16, whose largest number is 65504, for a task that admits fp16.

task: linear
precision: fp16
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        product = x.half() @ self.linear.weight.half().t()
        return (product.float() + self.linear.bias).relu()
