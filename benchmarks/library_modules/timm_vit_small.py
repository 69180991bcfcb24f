"""ViT small on 32 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = timm.create_model("vit_small_patch16_224").to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 3, 224, 224, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
