"""A decoder block of T5 base over 8 x 256 tokens, with cross attention, in bf16."""

import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Block, T5Config


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = T5Config(
            d_model=768, d_kv=64, d_ff=3072, num_heads=12, is_decoder=True, use_cache=False
        )
        self.layer = T5Block(config, has_relative_attention_bias=True, layer_idx=0)
        self.layer.to(torch.bfloat16).eval()

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mask = torch.zeros(1, 1, length, length, dtype=x.dtype, device=x.device)
        mask = mask.masked_fill(later, torch.finfo(x.dtype).min)
        return self.layer(x, attention_mask=mask, encoder_hidden_states=encoded)[0]


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(8, 256, 768, dtype=torch.bfloat16),
        torch.randn(8, 512, 768, dtype=torch.bfloat16),
    ]


def get_init_inputs() -> list[object]:
    return []
