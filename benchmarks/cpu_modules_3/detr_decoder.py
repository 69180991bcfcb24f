"""A decoder layer of DETR with its box head (transformers)."""

import torch
from torch import Tensor, nn
from transformers import DetrConfig
from transformers.models.detr import modeling_detr as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = DetrConfig(
            d_model=128,
            decoder_attention_heads=4,
            decoder_ffn_dim=256,
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            attn_implementation="sdpa",
        )
        self.queries = nn.Embedding(50, 128)
        self.layer = parts.DetrDecoderLayer(config)
        self.norm = nn.LayerNorm(128)
        self.classes = nn.Linear(128, 21)
        self.boxes = parts.DetrMLPPredictionHead(128, 128, 4, 3)

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        queries = self.queries.weight[None].expand(x.shape[0], -1, -1)
        y = self.layer(
            torch.zeros_like(queries),
            object_queries_position_embeddings=queries,
            spatial_position_embeddings=places,
            encoder_hidden_states=x,
        )
        y = self.norm(y)
        return self.classes(y).softmax(-1), self.boxes(y).sigmoid()


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 100, 128), torch.randn(2, 100, 128)]


def get_init_inputs() -> list[object]:
    return []
