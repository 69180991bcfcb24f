import torch
from torch import nn

from cuagent.kernels import load

kernels = load("kernels/mlp.cu")


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps


class ModelNew(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.empty_like(x)
        kernels.rmsnorm(h, x, self.norm.weight, self.norm.eps, x.shape[0], x.shape[1])
        gate = torch.mm(h, self.gate.weight.T)
        kernels.silu_times(gate, torch.mm(h, self.up.weight.T), gate.numel())
        return torch.addmm(x, gate, self.down.weight.T)
