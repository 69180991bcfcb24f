"""The symmetric contrastive loss of CLIP with its projections."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(256, 128, bias=False), nn.Linear(192, 128, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        a, b = self.image(images), self.text(texts)
        a = a / a.norm(dim=-1, keepdim=True)
        b = b / b.norm(dim=-1, keepdim=True)
        logits = self.scale.exp() * a @ b.t()
        labels = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def get_inputs() -> list[Tensor]:
    return [torch.randn(128, 256), torch.randn(128, 192)]


def get_init_inputs() -> list[object]:
    return []
