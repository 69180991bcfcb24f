"""One block of four warps per row.

task: softplus_rows
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/softplus_rows_cuda.cu")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = x.new_empty(x.shape[0])
        kernel.softplus_rows[x.shape[0], 128](y, x, x.shape[1])
        return y
