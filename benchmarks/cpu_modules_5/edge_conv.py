"""An edge convolution of a point cloud: nearest neighbours, differences, an MLP, their maximum."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.neighbours = 12
        self.mlp = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 48))

    def forward(self, points: Tensor, features: Tensor) -> Tensor:
        n = features.shape[0]
        square = points.square().sum(-1)
        distance = square[:, :, None] - 2 * points @ points.transpose(1, 2) + square[:, None, :]
        index = distance.topk(self.neighbours, largest=False).indices
        rows = torch.arange(n)[:, None, None]
        near = features[rows, index]
        centre = features[:, :, None, :].expand_as(near)
        edge = torch.cat((centre, near - centre), dim=-1)
        return F.leaky_relu(self.mlp(edge), 0.2).amax(2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 256, 3), torch.randn(2, 256, 6)]


def get_init_inputs() -> list[object]:
    return []
