"""A block of XCiT small on 32 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("xcit_small_12_p16_224")
        self.layer = network.blocks[0].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, 14, 14)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 196, 384, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
