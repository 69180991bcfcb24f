"""The feed-forward part of a diffusion transformer: modulated norm and GEGLU, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(160, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(160, 480)
        self.into, self.out = nn.Linear(160, 640), nn.Linear(320, 160)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(time))[:, None].chunk(3, dim=-1)
        y = self.norm(x) * (1 + scale) + shift
        value, activation = self.into(y).chunk(2, dim=-1)
        return x + gate * self.out(value * F.gelu(activation, approximate="tanh"))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 96, 160).bfloat16(), torch.randn(2, 160).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
