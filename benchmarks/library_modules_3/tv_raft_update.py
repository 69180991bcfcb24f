"""The update block of RAFT large on 2 pairs of 440 x 1024 images in fp32, from torchvision."""

import torch
from torch import Tensor, nn
from torchvision.models.optical_flow import raft_large


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = raft_large().update_block.eval()

    def forward(
        self, hidden: Tensor, context: Tensor, correlation: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.layer(hidden, context, correlation, flow)


def get_inputs() -> list[Tensor]:
    return [
        torch.tanh(torch.randn(2, 128, 55, 128)),
        torch.randn(2, 128, 55, 128),
        torch.randn(2, 324, 55, 128),
        torch.randn(2, 2, 55, 128),
    ]


def get_init_inputs() -> list[object]:
    return []
