"""The third stage of CoAtNet nano on 32 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = timm.create_model("coatnet_nano_rw_224").stages[2].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 128, 28, 28, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
