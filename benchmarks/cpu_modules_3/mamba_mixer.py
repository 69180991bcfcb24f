"""The mixer of Mamba: a short depthwise convolution and a selective scan (transformers)."""

import torch
from torch import Tensor, nn
from transformers import MambaConfig
from transformers.models.mamba import modeling_mamba as parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = MambaConfig(
            hidden_size=64, state_size=8, num_hidden_layers=1, time_step_rank=4, use_cache=False
        )
        self.norm = parts.MambaRMSNorm(64)
        self.mixer = parts.MambaMixer(config, layer_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 48, 64)]


def get_init_inputs() -> list[object]:
    return []
