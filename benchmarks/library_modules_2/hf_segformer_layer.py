"""A layer of SegFormer B2 over 8 images of 128 x 128 places in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.segformer.modeling_segformer import SegformerConfig, SegformerLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = SegformerLayer(SegformerConfig(), 64, 1, 0.0, 8, 4)
        self.layer = layer.to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x, 128, 128)
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 16384, 64, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
