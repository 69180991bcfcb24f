"""A layer of DINOv2 base over 16 images of 1370 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.dinov2.modeling_dinov2 import Dinov2Config, Dinov2Layer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Dinov2Layer(Dinov2Config(attn_implementation="sdpa")).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 1370, 768, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
