"""torch's own encoder layer, with the norm first, in bf16."""

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, INNER, HEADS = 32, 256, 512, 2048, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, activation="gelu", batch_first=True, norm_first=True
        )
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
