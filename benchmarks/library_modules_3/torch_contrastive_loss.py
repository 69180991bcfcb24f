"""The symmetric contrastive loss of CLIP on 4096 pairs of 512 features in fp32."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(768, 512, bias=False)
        self.text = nn.Linear(512, 512, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        images = F.normalize(self.image(images), dim=-1)
        texts = F.normalize(self.text(texts), dim=-1)
        logits = self.scale.exp() * images @ texts.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def get_inputs() -> list[Tensor]:
    return [torch.randn(4096, 768), torch.randn(4096, 512)]


def get_init_inputs() -> list[object]:
    return []
