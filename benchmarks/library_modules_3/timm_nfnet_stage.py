"""The second stage of NFNet F0 on 16 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("dm_nfnet_f0")
        self.layer = network.stages[1].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 256, 48, 48, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
