"""The third stage of MobileViT S on 32 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = timm.create_model("mobilevit_s").stages[2].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 64, 64, 64, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
