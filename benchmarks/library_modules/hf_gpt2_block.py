"""A block of GPT-2 over 8 x 1024 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2Config


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = GPT2Block(GPT2Config(attn_implementation="sdpa"), 0).to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 1024, 768, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
