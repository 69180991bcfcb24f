"""The triangle multiplication of AlphaFold's pair representation, in bf16."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(32), nn.LayerNorm(32)
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)
        self.left_gate, self.right_gate = nn.Linear(32, 32), nn.Linear(32, 32)
        self.gate, self.out = nn.Linear(32, 32), nn.Linear(32, 32)
        self.to(torch.bfloat16)

    def forward(self, pairs: Tensor, mask: Tensor) -> Tensor:
        z = self.norm_in(pairs)
        a = self.left(z) * self.left_gate(z).sigmoid() * mask[..., None]
        b = self.right(z) * self.right_gate(z).sigmoid() * mask[..., None]
        y = self.norm_out(torch.einsum("bikc,bjkc->bijc", a, b))
        return pairs + self.out(y) * self.gate(z).sigmoid()


def get_inputs() -> list[Tensor]:
    mask = torch.ones(1, 32, 32).bfloat16()
    mask[:, :, 29:] = 0
    return [torch.randn(1, 32, 32, 32).bfloat16(), mask]


def get_init_inputs() -> list[object]:
    return []
