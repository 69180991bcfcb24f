"""The first stage of PoolFormer S12 on 32 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = timm.create_model("poolformer_s12").stages[0].eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 64, 56, 56)]


def get_init_inputs() -> list[object]:
    return []
