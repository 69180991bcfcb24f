"""A linear layer with 8-bit weights and a scale for each group of inputs, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group = 64
        weights = torch.randint(-127, 128, (256, 192), dtype=torch.int8)
        self.register_buffer("weights", weights)
        self.register_buffer("scales", (torch.rand(256, 3, 1) * 1e-3).bfloat16())
        self.bias = nn.Parameter(torch.zeros(256, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights.view(256, -1, self.group).to(x.dtype) * self.scales
        return F.gelu(F.linear(x, weights.view(256, -1), self.bias))


def get_inputs() -> list[Tensor]:
    return [torch.randn(48, 192).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
