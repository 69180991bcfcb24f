"""The third stage of Swin V2 tiny on 16 images in fp16, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = torchvision.models.swin_v2_t(weights=None)
        self.layer = network.features[3].to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 28, 28, 192, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
