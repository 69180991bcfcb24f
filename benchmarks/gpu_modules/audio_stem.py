"""The stem of Whisper medium over eight spectrograms of 30 seconds, in fp16."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, BANDS, FRAMES, WIDTH = 8, 80, 3000, 1024


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(WIDTH)
        step = math.log(10000) / (WIDTH // 2 - 1)
        rates = torch.exp(-step * torch.arange(WIDTH // 2).float())
        angles = torch.arange(FRAMES // 2).float()[:, None] * rates[None, :]
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), dim=1))
        self.half()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x)).permute(0, 2, 1)
        x = x + self.positions
        return x, self.norm(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, BANDS, FRAMES).half()]


def get_init_inputs() -> list[object]:
    return []
