"""A block of RWKV 169M over 4 x 128 tokens in fp32, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.rwkv.modeling_rwkv import RwkvBlock, RwkvConfig


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = RwkvConfig(hidden_size=768, attention_hidden_size=768)
        self.layer = RwkvBlock(config, 1).eval()
        for name, parameter in self.layer.named_parameters():
            if "time_mix" in name:
                nn.init.uniform_(parameter)
            elif "time_" in name:
                nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 128, 768)]


def get_init_inputs() -> list[object]:
    return []
