"""The feed-forward half of a transformer block: RMSNorm, a SiLU-gated MLP and the residual sum."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH, HIDDEN = 256, 256, 768


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs() -> list[int]:
    return [WIDTH, HIDDEN]
