"""The third stage of ConvNeXt tiny on 32 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("convnext_tiny")
        self.network = network.stages[2].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 192, 28, 28, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
