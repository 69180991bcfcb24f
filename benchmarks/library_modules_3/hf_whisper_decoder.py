"""A decoder layer of Whisper small over 8 x 224 tokens and 1500 frames in fp16."""

import torch
from torch import Tensor, nn
from transformers.models.whisper.modeling_whisper import WhisperConfig, WhisperDecoderLayer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = WhisperConfig(
            d_model=768,
            decoder_attention_heads=12,
            decoder_ffn_dim=3072,
            attn_implementation="sdpa",
        )
        self.layer = WhisperDecoderLayer(config, 0).to(torch.float16).eval()

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        result = self.layer(x, encoder_hidden_states=frames, use_cache=False)
        return result if torch.is_tensor(result) else result[0]


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(8, 224, 768, dtype=torch.float16),
        torch.randn(8, 1500, 768, dtype=torch.float16),
    ]


def get_init_inputs() -> list[object]:
    return []
