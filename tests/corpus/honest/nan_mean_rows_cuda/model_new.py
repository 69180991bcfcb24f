"""One warp per row.

task: nan_mean_rows
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/nan_mean_rows_cuda.cu")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = x.new_empty(x.shape[0])
        kernel.nan_mean[x.shape[0], 32](y, x, x.shape[1])
        return y
