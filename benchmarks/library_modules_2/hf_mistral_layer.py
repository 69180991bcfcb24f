"""A decoder layer in the shape of Mistral 7B over 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.mistral.modeling_mistral import (
    MistralConfig,
    MistralDecoderLayer,
    MistralRotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = MistralConfig(attn_implementation="sdpa", sliding_window=None)
        self.layer = MistralDecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = MistralRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 1024, 4096, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
