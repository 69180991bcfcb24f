"""The sparse block of Qwen1.5-MoE over 4 x 256 tokens in bf16, from transformers."""

import torch
from torch import Tensor, nn
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeSparseMoeBlock


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = Qwen2MoeConfig(experts_implementation="grouped_mm")
        self.layer = Qwen2MoeSparseMoeBlock(config).to(torch.bfloat16).eval()
        for parameter in self.layer.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 256, 2048, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
