"""A decoder layer in the shape of Phi-3 mini over 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.phi3.modeling_phi3 import (
    Phi3Config,
    Phi3DecoderLayer,
    Phi3RotaryEmbedding,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Phi3Config(attn_implementation="sdpa", sliding_window=None, pad_token_id=0)
        self.layer = Phi3DecoderLayer(config, 0).to(torch.bfloat16)
        self.rotary = Phi3RotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 1024, 3072, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
