"""A decoder layer of Llama 3.2 1B over 2 x 2048 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=2048,
            intermediate_size=8192,
            num_attention_heads=32,
            num_key_value_heads=8,
            attn_implementation="sdpa",
        )
        self.layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 2048, 2048, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
