"""A decoder layer of DETR over 8 images, 100 queries, 950 places in fp32."""

import torch
from torch import Tensor, nn
from transformers.models.detr.modeling_detr import DetrConfig, DetrDecoderLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = DetrDecoderLayer(DetrConfig(attn_implementation="sdpa")).eval()
        self.queries = nn.Embedding(100, 256)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        queries = self.queries.weight.unsqueeze(0).repeat(x.shape[0], 1, 1)
        result = self.layer(
            x,
            spatial_position_embeddings=places,
            object_queries_position_embeddings=queries,
            encoder_hidden_states=memory,
        )
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 100, 256), torch.randn(8, 950, 256), torch.randn(8, 950, 256)]


def get_init_inputs() -> list[object]:
    return []
