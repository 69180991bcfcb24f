"""The convolution module of a Conformer on 16 x 800 frames in fp16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width: int = 512, kernel: int = 31) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.project = nn.Conv1d(width, width, 1)
        self.to(torch.float16).eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).transpose(1, 2)
        h = F.glu(self.expand(h), dim=1)
        h = F.silu(self.batch_norm(self.depthwise(h)))
        return x + self.project(h).transpose(1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 800, 512, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
