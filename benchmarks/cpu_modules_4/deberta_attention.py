"""Disentangled attention of DeBERTa v2 (transformers)."""

import torch
from torch import Tensor, nn
from transformers import DebertaV2Config
from transformers.models.deberta_v2 import modeling_deberta_v2 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = DebertaV2Config(
            hidden_size=96,
            num_attention_heads=3,
            intermediate_size=192,
            relative_attention=True,
            position_buckets=32,
            max_relative_positions=64,
            pos_att_type=["p2c", "c2p"],
            share_att_key=True,
        )
        self.attention = parts.DebertaV2Attention(config)
        self.positions = nn.Parameter(torch.randn(64, 96) * 0.02)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        pairs = (mask[:, None, None, :] * mask[:, None, :, None]).bool()
        return self.attention(x, pairs, rel_embeddings=self.positions)[0]


def get_inputs() -> list[Tensor]:
    lengths = torch.tensor([[48], [31]])
    return [torch.randn(2, 48, 96), (torch.arange(48)[None] < lengths).long()]


def get_init_inputs() -> list[object]:
    return []
