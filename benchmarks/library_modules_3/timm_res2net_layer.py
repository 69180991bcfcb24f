"""The second layer of Res2Net-50 (26w, 4s) on 32 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("res2net50_26w_4s")
        self.layer = network.layer2.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 256, 56, 56)]


def get_init_inputs() -> list[object]:
    return []
