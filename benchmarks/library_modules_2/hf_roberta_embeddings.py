"""The embeddings and two layers of RoBERTa base over 16 x 256 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.roberta.modeling_roberta import RobertaConfig, RobertaModel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = RobertaConfig(num_hidden_layers=2, attn_implementation="sdpa")
        self.layer = RobertaModel(config).to(torch.bfloat16).eval()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens).last_hidden_state


def get_inputs() -> list[Tensor]:
    return [torch.randint(5, 50000, (16, 256))]


def get_init_inputs() -> list[object]:
    return []
