"""Two layers of a graph convolution with symmetric normalisation and self loops."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 16)

    def pass_messages(self, x: Tensor, edges: Tensor, norm: Tensor, own: Tensor) -> Tensor:
        message = x[edges[0]] * norm[:, None]
        return torch.zeros_like(x).index_add(0, edges[1], message) + x * own[:, None]

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        ones = x.new_ones(edges.shape[1])
        degree = x.new_ones(x.shape[0]).index_add(0, edges[1], ones)
        root = degree.rsqrt()
        norm, own = root[edges[0]] * root[edges[1]], 1 / degree
        h = F.relu(self.pass_messages(self.first(x), edges, norm, own))
        return self.pass_messages(self.second(h), edges, norm, own).log_softmax(-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(600, 32), torch.randint(0, 600, (2, 3000))]


def get_init_inputs() -> list[object]:
    return []
