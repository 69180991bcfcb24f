"""The second stage of MaxViT tiny on 16 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("maxvit_tiny_rw_224")
        self.layer = network.stages[1].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 64, 56, 56, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
