"""A layer of XLNet base over 8 x 256 tokens in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.xlnet.modeling_xlnet import XLNetConfig, XLNetLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = XLNetLayer(XLNetConfig(d_model=768, n_layer=1, n_head=12, d_inner=3072))
        for parameter in self.layer.rel_attn.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.layer.to(torch.float16).eval()

    def forward(self, x: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        other = segments[:, None] != segments[None, :]
        segment_matrix = nn.functional.one_hot(other.long(), 2).to(x.dtype)
        return self.layer(x, None, None, None, positions, segment_matrix)[0]


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(256, 8, 768, dtype=torch.float16),
        torch.randn(512, 8, 768, dtype=torch.float16),
        torch.randint(0, 2, (256, 8)),
    ]


def get_init_inputs() -> list[object]:
    return []
