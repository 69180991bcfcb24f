"""A block of a vision transformer with LayerScale and norms of queries and keys, in bf16 (timm)."""

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(192, num_heads=6, qkv_bias=True, qk_norm=True, init_values=0.1)
        self.block.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 65, 192).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
