"""The second stage of EdgeNeXt small on 32 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("edgenext_small")
        self.layer = network.stages[1].eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 48, 64, 64)]


def get_init_inputs() -> list[object]:
    return []
