"""Each block sums in shared memory and adds its sums to the global ones.

task: label_sums
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/label_sums_cuda.cu")


class ModelNew(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.labels = labels

    def forward(self, weights, label):
        sums, count = weights.new_zeros(self.labels), weights.new_zeros(self.labels)
        kernel.add[12, 256](sums, count, weights, label, weights.numel(), self.labels)
        return sums, count
