"""A layer of ViT base over 64 images of 197 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.vit.modeling_vit import ViTConfig, ViTLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ViTLayer(ViTConfig(attn_implementation="sdpa")).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 197, 768, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
