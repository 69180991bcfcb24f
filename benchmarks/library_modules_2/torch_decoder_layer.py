"""A decoder layer of torch over 16 x 128 tokens and 16 x 256 of an encoder, in bf16."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
        self.layer.to(torch.bfloat16).eval()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.layer(x, memory)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(16, 128, 512, dtype=torch.bfloat16),
        torch.randn(16, 256, 512, dtype=torch.bfloat16),
    ]


def get_init_inputs() -> list[object]:
    return []
