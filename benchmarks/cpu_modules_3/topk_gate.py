"""A mixture of experts with a softmax over the two best, and its balance loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = 8
        self.gate = nn.Linear(64, 8, bias=False)
        self.up = nn.Parameter(torch.randn(8, 64, 96) * 0.1)
        self.down = nn.Parameter(torch.randn(8, 96, 64) * 0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x)
        best, chosen = torch.topk(logits, 2, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, best.softmax(-1))
        hidden = F.silu(torch.einsum("nd,edh->enh", x, self.up))
        y = torch.einsum("enh,ehd->end", hidden, self.down)
        y = (y * weights.t()[..., None]).sum(0)
        share = F.one_hot(chosen, self.experts).to(x.dtype).sum(1).mean(0)
        balance = self.experts * (share * logits.softmax(-1).mean(0)).sum()
        return y, balance


def get_inputs() -> list[Tensor]:
    return [torch.randn(128, 64)]


def get_init_inputs() -> list[object]:
    return []
