"""The time mixing of RWKV 4: shifted inputs, a decayed average with running maxima, a gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, 96))
        self.decay = nn.Parameter(torch.randn(96))
        self.bonus = nn.Parameter(torch.randn(96) * 0.3)
        self.key, self.value = nn.Linear(96, 96, bias=False), nn.Linear(96, 96, bias=False)
        self.gate, self.out = nn.Linear(96, 96, bias=False), nn.Linear(96, 96, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        mixed = [x * m + before * (1 - m) for m in self.mix]
        k, v, r = self.key(mixed[0]), self.value(mixed[1]), self.gate(mixed[2])
        decay = -torch.exp(self.decay)
        top = torch.zeros_like(k[:, 0]) - 1e4
        total, count = torch.zeros_like(top), torch.zeros_like(top)
        made = []
        for t in range(x.shape[1]):
            now = torch.maximum(top, self.bonus + k[:, t])
            a, b = torch.exp(top - now), torch.exp(self.bonus + k[:, t] - now)
            made.append((a * total + b * v[:, t]) / (a * count + b))
            following = torch.maximum(top + decay, k[:, t])
            a, b = torch.exp(top + decay - following), torch.exp(k[:, t] - following)
            total, count, top = a * total + b * v[:, t], a * count + b, following
        return self.out(torch.sigmoid(r) * torch.stack(made, dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 32, 96)]


def get_init_inputs() -> list[object]:
    return []
