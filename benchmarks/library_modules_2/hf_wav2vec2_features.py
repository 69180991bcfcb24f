"""The convolutions of Wav2Vec2 base over 4 x 2 s of sound in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.wav2vec2.modeling_wav2vec2 import (
    Wav2Vec2Config,
    Wav2Vec2FeatureEncoder,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Wav2Vec2FeatureEncoder(Wav2Vec2Config()).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 32000)]


def get_init_inputs() -> list[object]:
    return []
