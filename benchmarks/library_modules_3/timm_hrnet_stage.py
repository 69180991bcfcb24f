"""A module of the third stage of HRNet W18 on 16 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = timm.create_model("hrnet_w18").stage3[0].eval()

    def forward(self, large: Tensor, middle: Tensor, small: Tensor) -> list[Tensor]:
        return self.layer([large, middle, small])


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(16, 18, 56, 56),
        torch.randn(16, 36, 28, 28),
        torch.randn(16, 72, 14, 14),
    ]


def get_init_inputs() -> list[object]:
    return []
