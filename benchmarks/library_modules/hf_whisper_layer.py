"""An encoder layer of Whisper small over 4 x 1500 frames in fp16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.whisper.modeling_whisper import WhisperConfig, WhisperEncoderLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = WhisperConfig(
            d_model=768,
            encoder_attention_heads=12,
            encoder_ffn_dim=3072,
            attn_implementation="sdpa",
        )
        self.layer = WhisperEncoderLayer(config).to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, attention_mask=None)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 1500, 768, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
