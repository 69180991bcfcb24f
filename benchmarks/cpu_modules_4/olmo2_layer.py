"""A layer of OLMo 2, which norms after attention and feed-forward, in bf16 (transformers)."""

import torch
from torch import Tensor, nn
from transformers import Olmo2Config
from transformers.models.olmo2 import modeling_olmo2 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Olmo2Config(
            hidden_size=160,
            intermediate_size=320,
            num_attention_heads=5,
            num_key_value_heads=5,
            num_hidden_layers=1,
            attn_implementation="sdpa",
        )
        self.layer = parts.Olmo2DecoderLayer(config, layer_idx=0)
        self.rotary = parts.Olmo2RotaryEmbedding(config)
        self.layer.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        angles = self.rotary(x, torch.arange(x.shape[1])[None])
        return self.layer(x, position_embeddings=angles)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 56, 160).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
