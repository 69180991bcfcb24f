"""SwiGLU activation of Llama 3 8B over 4096 tokens in bf16, between its matrix products."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, WIDTH = 4096, 14336


class Model(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(2)]


def get_init_inputs() -> list[object]:
    return []
