"""Interleaved rotary embedding of half of each head, as in GPT-J, in bf16."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotated = 32
        self.register_buffer("frequency", 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32))

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, kept = x[..., : self.rotated].float(), x[..., self.rotated :]
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        return torch.cat((pairs.to(x.dtype), kept), dim=-1)

    def forward(self, q: Tensor, k: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = places[:, None, :, None].float() * self.frequency
        cos, sin = angles.cos(), angles.sin()
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)


def get_inputs() -> list[Tensor]:
    places = torch.arange(128)[None].repeat(2, 1)
    return [torch.randn(2, 8, 128, 64).bfloat16(), torch.randn(2, 2, 128, 64).bfloat16(), places]


def get_init_inputs() -> list[object]:
    return []
