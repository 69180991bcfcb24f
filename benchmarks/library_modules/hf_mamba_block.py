"""A block of Mamba 130M over 2 x 256 tokens in fp32, from transformers without CUDA packages."""

import torch
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import MambaBlock, MambaConfig


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = MambaBlock(MambaConfig(hidden_size=768, num_hidden_layers=1), 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 256, 768)]


def get_init_inputs() -> list[object]:
    return []
