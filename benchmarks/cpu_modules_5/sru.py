"""Two layers of simple recurrent units, whose products need no state."""

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, 3 * size, bias=False)
        self.forget_weight = nn.Parameter(torch.rand(size) - 0.5)
        self.forget_bias = nn.Parameter(torch.zeros(size))
        self.reset_weight = nn.Parameter(torch.rand(size) - 0.5)
        self.reset_bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        u = self.project(x)
        c = torch.zeros_like(x[0])
        made = []
        for t in range(x.shape[0]):
            z, f, r = u[t].chunk(3, dim=-1)
            forget = torch.sigmoid(f + self.forget_weight * c + self.forget_bias)
            reset = torch.sigmoid(r + self.reset_weight * c + self.reset_bias)
            c = forget * c + (1 - forget) * z
            made.append(reset * c + (1 - reset) * x[t])
        return torch.stack(made)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(128), Layer(128))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 8, 128)]


def get_init_inputs() -> list[object]:
    return []
