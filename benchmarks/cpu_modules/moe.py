"""A layer of four experts, of which each token uses the best two."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(128, 4, bias=False)
        self.w1 = nn.Parameter(torch.randn(4, 128, 256) * 0.05)
        self.w2 = nn.Parameter(torch.randn(4, 256, 128) * 0.05)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = F.softmax(self.gate(x), dim=-1)
        weights, chosen = torch.topk(p, 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        full = torch.zeros_like(p).scatter(-1, chosen, weights)
        hidden = F.silu(torch.einsum("td,edh->teh", x, self.w1))
        y = torch.einsum("teh,ehd->ted", hidden, self.w2)
        share = F.one_hot(chosen, 4).float().sum(1).mean(0)
        balance = (share * p.mean(0)).sum() * 4
        return (y * full.unsqueeze(-1)).sum(1), balance


def get_inputs() -> list[Tensor]:
    return [torch.randn(128, 128)]


def get_init_inputs() -> list[object]:
    return []
