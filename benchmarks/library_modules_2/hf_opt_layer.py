"""A decoder layer of OPT 350M over 8 x 512 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.opt.modeling_opt import OPTConfig, OPTDecoderLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = OPTConfig(
            hidden_size=1024, ffn_dim=4096, num_attention_heads=16, attn_implementation="sdpa"
        )
        self.layer = OPTDecoderLayer(config, 0).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 512, 1024, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
