"""A layer of a Kolmogorov-Arnold network with cubic B-splines (recursion of Cox and de Boor)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        grid = torch.linspace(-1 - 3 * 0.4, 1 + 3 * 0.4, 12)
        self.register_buffer("grid", grid.expand(32, 12).contiguous())
        self.spline = nn.Parameter(torch.randn(48, 32 * 8) * 0.1)
        self.scale = nn.Parameter(torch.rand(48, 32, 1))
        self.base = nn.Linear(32, 48, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        grid, x3 = self.grid, x[..., None]
        bases = ((x3 >= grid[:, :-1]) & (x3 < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (x3 - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x3) / (grid[:, k + 1 :] - grid[:, 1:(-k)])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        weight = (self.spline.view(48, 32, 8) * self.scale).flatten(1)
        return self.base(F.silu(x)) + F.linear(bases.flatten(1), weight)


def get_inputs() -> list[Tensor]:
    return [torch.rand(256, 32) * 2 - 1]


def get_init_inputs() -> list[object]:
    return []
