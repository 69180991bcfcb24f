"""A layer of message passing with gates over 20000 nodes and 160000 edges in fp32."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int = 128, edge_width: int = 32) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width + edge_width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.gate = nn.Linear(width, 1)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        pairs = torch.cat([nodes[source], nodes[target], features], dim=-1)
        messages = self.message(pairs)
        messages = messages * torch.sigmoid(self.gate(messages))
        summed = torch.zeros_like(nodes).index_add(0, target, messages)
        count = torch.zeros_like(nodes[:, :1]).index_add(
            0, target, torch.ones_like(messages[:, :1])
        )
        mean = summed / count.clamp(min=1)
        return self.norm(nodes + self.update(torch.cat([nodes, mean], dim=-1)))


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(20000, 128),
        torch.randint(0, 20000, (2, 160000)),
        torch.randn(160000, 32),
    ]


def get_init_inputs() -> list[object]:
    return []
