"""The fourth stage of EfficientNetV2 S on 32 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("tf_efficientnetv2_s")
        self.layer = network.blocks[3].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 64, 28, 28, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
