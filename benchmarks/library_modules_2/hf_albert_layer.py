"""A layer of ALBERT large over 16 x 256 tokens in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.albert.modeling_albert import AlbertConfig, AlbertLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = AlbertConfig(
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
            attn_implementation="sdpa",
        )
        self.layer = AlbertLayer(config).eval()

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 256, 1024)]


def get_init_inputs() -> list[object]:
    return []
