"""A layer of a graph attention network, with a softmax over the edges of a node."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = 4, 16
        self.lin = nn.Linear(64, 64, bias=False)
        self.source = nn.Parameter(torch.randn(1, 4, 16) * 0.1)
        self.target = nn.Parameter(torch.randn(1, 4, 16) * 0.1)
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        n = x.shape[0]
        h = self.lin(x).view(n, self.heads, self.size)
        a, b = (h * self.source).sum(-1), (h * self.target).sum(-1)
        src, dst = edges[0], edges[1]
        score = F.leaky_relu(a[src] + b[dst], 0.2)
        top = torch.full((n, self.heads), -1e30, dtype=score.dtype, device=score.device)
        index = dst[:, None].expand(-1, self.heads)
        top = top.scatter_reduce(0, index, score, "amax")
        weight = (score - top[dst]).exp()
        total = torch.zeros_like(top).index_add(0, dst, weight)
        weight = weight / (total[dst] + 1e-16)
        out = torch.zeros_like(h).index_add(0, dst, weight.unsqueeze(-1) * h[src])
        return F.elu(out.reshape(n, -1) + self.bias)


def get_inputs() -> list[Tensor]:
    return [torch.randn(400, 64), torch.randint(0, 400, (2, 3000))]


def get_init_inputs() -> list[object]:
    return []
