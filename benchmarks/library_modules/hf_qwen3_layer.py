"""A decoder layer of Qwen3 0.6B over 4 x 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Config,
    Qwen3DecoderLayer,
    Qwen3RotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Qwen3Config(
            hidden_size=1024,
            intermediate_size=3072,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            attn_implementation="sdpa",
        )
        self.layer = Qwen3DecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = Qwen3RotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 1024, 1024, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
