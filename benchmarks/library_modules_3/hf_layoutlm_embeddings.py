"""The embeddings of LayoutLM base over 16 x 512 tokens with boxes in fp16."""

import torch
from torch import Tensor, nn
from transformers.models.layoutlm.modeling_layoutlm import LayoutLMConfig, LayoutLMEmbeddings


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = LayoutLMEmbeddings(LayoutLMConfig()).to(torch.float16).eval()

    def forward(self, tokens: Tensor, corners: Tensor, sizes: Tensor) -> Tensor:
        boxes = torch.cat([corners, corners + sizes], dim=-1)
        return self.layer(tokens, boxes)


def get_inputs() -> list[Tensor]:
    return [
        torch.randint(0, 30522, (16, 512)),
        torch.randint(0, 500, (16, 512, 2)),
        torch.randint(1, 500, (16, 512, 2)),
    ]


def get_init_inputs() -> list[object]:
    return []
