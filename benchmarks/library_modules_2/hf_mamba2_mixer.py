"""A mixer of Mamba-2 over 2 x 512 tokens in bf16, from transformers without CUDA packages."""

import torch
from torch import Tensor, nn
from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Mamba2Config(
            hidden_size=768,
            num_heads=24,
            head_dim=64,
            expand=2,
            n_groups=1,
            state_size=128,
            chunk_size=128,
        )
        self.layer = Mamba2Mixer(config, 0).to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 512, 768, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
