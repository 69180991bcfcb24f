"""Log-mel features of audio: frames, a windowed Fourier transform as products, mel bands."""

import math

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frame, self.hop = 256, 128
        n, k = torch.arange(256), torch.arange(129)
        angles = 2 * math.pi * n[:, None] * k[None] / 256
        window = torch.hann_window(256)[:, None]
        self.register_buffer("cos", window * angles.cos())
        self.register_buffer("sin", window * angles.sin())
        centers = torch.linspace(0, 128, 42)
        up = (k[:, None] - centers[:-2]) / (centers[1:-1] - centers[:-2])
        down = (centers[2:] - k[:, None]) / (centers[2:] - centers[1:-1])
        self.register_buffer("mel", torch.minimum(up, down).clamp(min=0))

    def forward(self, audio: Tensor) -> Tensor:
        audio = torch.cat((audio[:, :1], audio[:, 1:] - 0.97 * audio[:, :-1]), dim=1)
        frames = audio.unfold(-1, self.frame, self.hop)
        power = (frames @ self.cos).square() + (frames @ self.sin).square()
        features = torch.log(power @ self.mel + 1e-6)
        mean = features.mean(1, keepdim=True)
        deviation = features.std(1, keepdim=True)
        return ((features - mean) / (deviation + 1e-5)).transpose(1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 8000)]


def get_init_inputs() -> list[object]:
    return []
