"""The encoder of T5 small with two layers over 16 x 512 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Config, T5EncoderModel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = T5EncoderModel(T5Config(num_layers=2)).to(torch.bfloat16).eval()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(tokens).last_hidden_state


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 32128, (16, 512))]


def get_init_inputs() -> list[object]:
    return []
