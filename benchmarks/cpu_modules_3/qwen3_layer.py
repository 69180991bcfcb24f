"""A layer of Qwen3 in bf16 (transformers)."""

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Qwen3Config(
            hidden_size=192,
            intermediate_size=384,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            num_hidden_layers=1,
            attn_implementation="sdpa",
        )
        self.layer = parts.Qwen3DecoderLayer(config, layer_idx=0)
        self.rotary = parts.Qwen3RotaryEmbedding(config)
        self.layer.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        angles = self.rotary(x, torch.arange(x.shape[1])[None])
        return self.layer(x, position_embeddings=angles)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 64, 192).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
