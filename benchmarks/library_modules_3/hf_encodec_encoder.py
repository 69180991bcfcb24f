"""The encoder of EnCodec 24 kHz on 4 x 1 s of sound in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.encodec.modeling_encodec import EncodecConfig, EncodecEncoder


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = EncodecEncoder(EncodecConfig()).eval()

    def forward(self, sound: Tensor) -> Tensor:
        return self.layer(sound)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 1, 24000)]


def get_init_inputs() -> list[object]:
    return []
