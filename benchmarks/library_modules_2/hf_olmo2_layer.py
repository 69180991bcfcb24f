"""A decoder layer in the shape of OLMo 2 1B over 2 x 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.olmo2.modeling_olmo2 import (
    Olmo2Config,
    Olmo2DecoderLayer,
    Olmo2RotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Olmo2Config(
            hidden_size=2048,
            intermediate_size=8192,
            num_attention_heads=16,
            num_key_value_heads=16,
            attn_implementation="sdpa",
        )
        self.layer = Olmo2DecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = Olmo2RotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 1024, 2048, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
