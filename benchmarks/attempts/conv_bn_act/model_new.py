import torch
from torch import nn

from cuagent.kernels import load

kernels = load("kernels/epilogue.cu")


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, bn = torch.conv2d(x, self.conv.weight, padding=1), self.bn
        area = y.shape[2] * y.shape[3]
        statistics = bn.running_mean, bn.running_var, bn.weight, bn.bias
        kernels.bn_silu(y, *statistics, bn.eps, 1.5, y.numel(), y.shape[1], area)
        return y
