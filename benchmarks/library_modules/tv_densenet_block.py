"""The second dense block of DenseNet-121 on 32 images in bf16, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = torchvision.models.densenet121(weights=None)
        self.network = network.features.denseblock2.to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 128, 28, 28, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
