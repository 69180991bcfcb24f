"""One block per column; its threads read the rows twice.

task: column_moments
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/column_moments_cuda.cu")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        mean, var = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
        kernel.moments[x.shape[1], 128](mean, var, x, *x.shape)
        return mean, var
