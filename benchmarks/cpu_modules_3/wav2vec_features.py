"""The convolutions of wav2vec 2.0 over raw audio (transformers)."""

import torch
from torch import Tensor, nn
from transformers import Wav2Vec2Config
from transformers.models.wav2vec2 import modeling_wav2vec2 as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Wav2Vec2Config(
            conv_dim=(64, 64, 64, 64),
            conv_kernel=(10, 3, 3, 2),
            conv_stride=(5, 2, 2, 2),
            hidden_size=96,
        )
        self.features = parts.Wav2Vec2FeatureEncoder(config)
        self.projection = parts.Wav2Vec2FeatureProjection(config)

    def forward(self, audio: Tensor) -> Tensor:
        audio = (audio - audio.mean(-1, keepdim=True)) / (audio.std(-1, keepdim=True) + 1e-7)
        return self.projection(self.features(audio).transpose(1, 2))[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 8000)]


def get_init_inputs() -> list[object]:
    return []
