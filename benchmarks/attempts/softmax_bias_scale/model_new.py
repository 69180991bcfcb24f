import torch
from torch import nn

from cuagent.kernels import load

kernels = load("kernels/softmax.cu")


class ModelNew(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns) + 0.5)
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernels.softmax(y, x, self.scale, self.bias, x.shape[0], x.shape[1])
        return y
