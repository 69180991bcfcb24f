"""The second stage of Swin tiny on 32 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("swin_tiny_patch4_window7_224")
        self.network = network.layers[1].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 56, 56, 96, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
