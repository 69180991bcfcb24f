"""A layer of SAM's image encoder (base) with windows, one image in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.sam.modeling_sam import SamVisionConfig, SamVisionLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = SamVisionConfig(attn_implementation="sdpa")
        self.layer = SamVisionLayer(config, window_size=14).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 64, 64, 768, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
