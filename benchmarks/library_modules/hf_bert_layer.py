"""A layer of BERT base over 32 x 128 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertConfig, BertLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(attn_implementation="sdpa")
        self.layer = BertLayer(config).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 128, 768, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
