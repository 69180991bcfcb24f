"""The third stage of ShuffleNet V2 on 64 images in fp16, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = torchvision.models.shufflenet_v2_x1_0(weights=None)
        self.layer = network.stage3.to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 116, 28, 28, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
