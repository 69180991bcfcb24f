"""A block of ConvNeXt V2 base on 32 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("convnextv2_base")
        self.layer = network.stages[1].blocks[0].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 256, 28, 28, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
