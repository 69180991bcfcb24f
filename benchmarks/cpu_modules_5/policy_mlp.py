"""A policy of soft actor-critic at batch 4: normalised observation, MLP, squashed normal action."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(24))
        self.register_buffer("var", torch.rand(24) + 0.5)
        self.first, self.second = nn.Linear(24, 128), nn.Linear(128, 128)
        self.out = nn.Linear(128, 12)

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        x = ((seen - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(-10, 10)
        x = F.elu(self.second(F.elu(self.first(x))))
        mean, spread = self.out(x).chunk(2, dim=-1)
        spread = spread.clamp(-5, 2)
        action = mean + spread.exp() * noise
        density = -0.5 * noise.square() - spread - 0.5 * math.log(2 * math.pi)
        density = density - 2 * (math.log(2) - action - F.softplus(-2 * action))
        return torch.tanh(action), density.sum(-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 24), torch.randn(4, 6)]


def get_init_inputs() -> list[object]:
    return []
