"""Two blocks of gMLP S16 on 64 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("gmlp_s16_224")
        self.layer = network.blocks[:2].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 196, 256, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
