"""The gate of a mixture of 64 experts over 8192 tokens: bf16 states, scores in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, WIDTH, EXPERTS, CHOSEN = 8192, 2048, 64, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(EXPERTS, WIDTH) * WIDTH**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(x.to(self.gate.dtype), self.gate)
        shares = torch.softmax(logits, dim=-1)
        weights, experts = torch.topk(shares, CHOSEN, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        load = F.one_hot(experts, EXPERTS).to(shares.dtype).sum(dim=1).mean(dim=0)
        balance = EXPERTS * (load * shares.mean(dim=0)).sum() / CHOSEN
        spread = torch.logsumexp(logits, dim=-1).square().mean()
        return weights.to(x.dtype), balance, spread


def get_inputs() -> list[Tensor]:
    return [torch.randn(TOKENS, WIDTH).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
