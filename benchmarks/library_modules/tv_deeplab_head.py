"""The head of DeepLabV3 on 4 feature maps in fp16, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        head = torchvision.models.segmentation.deeplabv3.DeepLabHead(2048, 21)
        self.network = head.to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 2048, 33, 33, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
