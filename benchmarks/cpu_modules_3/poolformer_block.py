"""A block of PoolFormer: pooling in place of attention (timm)."""

import torch
from timm.models.metaformer import GroupNorm1, MetaFormerBlock, Pooling
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = MetaFormerBlock(
            64,
            token_mixer=Pooling,
            mlp_act=nn.GELU,
            mlp_bias=True,
            norm_layer=GroupNorm1,
            layer_scale_init_value=0.1,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 64, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
