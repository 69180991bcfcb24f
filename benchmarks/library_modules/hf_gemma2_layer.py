"""A decoder layer of Gemma 2 2B over 2048 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import (
    Gemma2Config,
    Gemma2DecoderLayer,
    Gemma2RotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Gemma2Config(attn_implementation="eager")
        self.layer = Gemma2DecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = Gemma2RotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        positions = torch.arange(n, device=x.device)[None]
        later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        mask = torch.zeros(1, 1, n, n, dtype=x.dtype, device=x.device).masked_fill(later, -1e9)
        return self.layer(x, position_embeddings=self.rotary(x, positions), attention_mask=mask)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 2048, 2304, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
