"""Self-attention with relative positions and the gated feed-forward of T5 (transformers)."""

import torch
from torch import Tensor, nn
from transformers import T5Config
from transformers.models.t5 import modeling_t5 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = T5Config(
            d_model=128,
            d_kv=32,
            d_ff=256,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            attn_implementation="eager",
        )
        self.attention = parts.T5LayerSelfAttention(config, has_relative_attention_bias=True)
        self.feed_forward = parts.T5LayerFF(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        y = self.attention(x, attention_mask=hidden)[0]
        return self.feed_forward(y)


def get_inputs() -> list[Tensor]:
    lengths = torch.tensor([[80], [57]])
    return [torch.randn(2, 80, 128), (torch.arange(80)[None] < lengths).long()]


def get_init_inputs() -> list[object]:
    return []
