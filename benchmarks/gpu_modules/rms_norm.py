"""RMSNorm of Llama 3 8B over 8192 tokens in bf16, with its statistics in float32."""

import torch
from torch import Tensor, nn

TOKENS, WIDTH = 8192, 4096


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
