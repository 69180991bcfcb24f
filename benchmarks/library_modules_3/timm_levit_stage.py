"""The first stage of LeViT-256 on 64 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("levit_256")
        self.layer = network.stages[0].eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 196, 256)]


def get_init_inputs() -> list[object]:
    return []
