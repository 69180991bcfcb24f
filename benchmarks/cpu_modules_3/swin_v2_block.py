"""A block of Swin v2: cosine attention in shifted windows (timm)."""

import torch
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = SwinTransformerV2Block(96, (14, 14), num_heads=3, window_size=7, shift_size=3)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 14, 14, 96)]


def get_init_inputs() -> list[object]:
    return []
