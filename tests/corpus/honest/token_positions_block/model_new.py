"""One block per row, reduced in shared memory.

task: token_positions
device: cuda
"""

from torch import nn

from cuagent.kernels import load

kernel = load("kernels/token_positions_block.cu")


class ModelNew(nn.Module):
    def __init__(self, words, length, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, positions):
        words, places = self.words.weight, self.places.weight
        width = words.shape[1]
        y = words.new_empty(*ids.shape, width)
        kernel.embed[ids.numel(), 32](
            y,
            ids.contiguous(),
            positions.contiguous(),
            words,
            places,
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            ids.shape[1],
            width,
        )
        return y
