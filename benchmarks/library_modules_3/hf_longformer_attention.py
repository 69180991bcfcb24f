"""The local attention of Longformer base over 2 x 2048 tokens in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import (
    LongformerConfig,
    LongformerSelfAttention,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = LongformerConfig(attention_window=[512])
        self.layer = LongformerSelfAttention(config, 0).eval()

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[:2], device=x.device)
        return self.layer(
            x,
            attention_mask=mask,
            is_index_masked=mask < 0,
            is_index_global_attn=mask > 0,
            is_global_attn=False,
        )[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 2048, 768)]


def get_init_inputs() -> list[object]:
    return []
