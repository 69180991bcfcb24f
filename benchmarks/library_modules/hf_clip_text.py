"""The text model of CLIP with four layers over 64 x 77 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.clip.modeling_clip import CLIPTextConfig, CLIPTextModel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = CLIPTextConfig(num_hidden_layers=4, attn_implementation="sdpa")
        self.text = CLIPTextModel(config).to(torch.float16).eval()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.text(tokens).last_hidden_state


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, 49000, (64, 77))]


def get_init_inputs() -> list[object]:
    return []
