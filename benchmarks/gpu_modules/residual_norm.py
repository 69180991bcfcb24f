"""The end of a sublayer of BERT large in bf16: bias, dropout in eval mode, residual, LayerNorm."""

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH = 32, 512, 1024


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + self.dropout(x + self.bias)
        return self.norm(total), total


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH).bfloat16() for _ in range(2)]


def get_init_inputs() -> list[object]:
    return []
