"""An inverted residual of EfficientNet with squeeze-and-excitation (timm)."""

from functools import partial

import torch
from timm.layers import SqueezeExcite
from timm.models._efficientnet_blocks import InvertedResidual
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = InvertedResidual(
            24,
            24,
            dw_kernel_size=5,
            exp_ratio=4.0,
            act_layer=nn.SiLU,
            se_layer=partial(SqueezeExcite, rd_ratio=0.25),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 24, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
