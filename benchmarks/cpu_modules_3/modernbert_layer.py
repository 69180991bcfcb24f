"""A layer of ModernBERT with local attention (transformers)."""

import torch
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.models.modernbert import modeling_modernbert as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = ModernBertConfig(
            hidden_size=192,
            intermediate_size=288,
            num_attention_heads=6,
            num_hidden_layers=3,
            local_attention=32,
            attn_implementation="sdpa",
        )
        self.layer = parts.ModernBertEncoderLayer(config, layer_idx=1)
        self.rotary = parts.ModernBertRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        near = (places[:, None] - places[None]).abs() <= 16
        angles = self.rotary(x, places[None], "sliding_attention")
        return self.layer(x, attention_mask=near[None, None], position_embeddings=angles)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 96, 192)]


def get_init_inputs() -> list[object]:
    return []
