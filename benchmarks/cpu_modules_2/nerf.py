"""The network of NeRF with positional encodings of points."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(6))
        self.layers = nn.ModuleList([nn.Linear(39, 64), nn.Linear(64, 64), nn.Linear(103, 64)])
        self.sigma, self.rgb = nn.Linear(64, 1), nn.Linear(64, 3)

    def encode(self, x: Tensor) -> Tensor:
        y = x[..., None, :] * self.bands[:, None]
        return torch.cat((x, y.sin().flatten(-2), y.cos().flatten(-2)), dim=-1)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        e = self.encode(points)
        x = F.relu(self.layers[0](e))
        x = F.relu(self.layers[1](x))
        x = F.relu(self.layers[2](torch.cat((x, e), dim=-1)))
        return F.softplus(self.sigma(x)).squeeze(-1), torch.sigmoid(self.rgb(x))


def get_inputs() -> list[Tensor]:
    return [torch.rand(1024, 3)]


def get_init_inputs() -> list[object]:
    return []
