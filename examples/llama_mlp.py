"""The MLP block of a Llama-like model in bf16: RMSNorm, a SiLU-gated MLP and the residual sum.

The sizes are those of a 1B model and 4096 tokens, for a GPU. On a CPU give smaller ones:

    cuagent optimize examples/llama_mlp.py --init "256, 768" --inputs "bf16[1,64,256]"
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, TOKENS, WIDTH, HIDDEN = 2, 2048, 2048, 8192


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return [WIDTH, HIDDEN]
