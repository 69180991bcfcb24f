"""A layer of Gemma 2 with softcapped scores, in bf16 (transformers)."""

import torch
from torch import Tensor, nn
from transformers import Gemma2Config
from transformers.models.gemma2 import modeling_gemma2 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Gemma2Config(
            hidden_size=128,
            intermediate_size=256,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            query_pre_attn_scalar=32,
            num_hidden_layers=2,
            attn_implementation="eager",
        )
        self.layer = parts.Gemma2DecoderLayer(config, layer_idx=1)
        self.rotary = parts.Gemma2RotaryEmbedding(config)
        self.layer.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = torch.full((n, n), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        angles = self.rotary(x, torch.arange(n)[None])
        return self.layer(x, attention_mask=mask[None, None], position_embeddings=angles)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 64, 128).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
