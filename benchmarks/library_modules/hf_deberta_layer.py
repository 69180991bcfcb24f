"""A layer of DeBERTa v3 base over 16 x 256 tokens in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Config, DebertaV2Encoder


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = DebertaV2Config(
            hidden_size=768,
            num_hidden_layers=1,
            num_attention_heads=12,
            intermediate_size=3072,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
        )
        self.encoder = DebertaV2Encoder(config).eval()

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.int64, device=x.device)
        return self.encoder(x, mask).last_hidden_state


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 256, 768)]


def get_init_inputs() -> list[object]:
    return []
