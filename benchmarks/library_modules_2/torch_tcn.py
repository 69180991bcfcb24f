"""Four residual blocks of dilated causal convolutions over 32 series of 1024 steps, in fp32."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(128, 128, 3, dilation=2**k, padding=2 ** (k + 1)) for k in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(128) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = convolution(x)[..., : x.shape[-1]]
            x = x + torch.relu(norm(y))
        return x


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 128, 1024)]


def get_init_inputs() -> list[object]:
    return []
