"""One block per bag, one thread per column.

task: bag_offsets
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/bag_offsets_cuda.cu")


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean")

    def forward(self, ids, offsets):
        table = self.table.weight
        bags, width = offsets.numel(), table.shape[1]
        y = table.new_empty(bags, width)
        kernel.bags[bags, 64](y, table, ids, offsets, ids.numel(), bags, width)
        return y
