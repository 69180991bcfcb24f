"""Two affine couplings of a normalising flow, with the log-likelihood of a normal prior."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Parameter(torch.randn(2, 32) * 0.1),
            nn.Parameter(torch.randn(2, 32)),
        )
        self.first = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.second = nn.ModuleList(nn.Linear(48, 32) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logdet = self.scale.sum().expand(x.shape[0])
        for k in range(2):
            x = (x + self.shift[k]) * self.scale[k].exp()
            a, b = x.chunk(2, dim=1)
            s, t = self.second[k](F.relu(self.first[k](a))).chunk(2, dim=1)
            s = 2 * torch.tanh(s / 2)
            b = b * s.exp() + t
            logdet = logdet + s.sum(1)
            x = torch.cat((b, a), dim=1)
        prior = -0.5 * (x.square() + math.log(2 * math.pi)).sum(1)
        return x, prior + logdet


def get_inputs() -> list[Tensor]:
    return [torch.randn(512, 32)]


def get_init_inputs() -> list[object]:
    return []
