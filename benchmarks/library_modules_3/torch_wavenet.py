"""Six residual blocks of WaveNet with skips on 8 x 8192 samples in fp32."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, channels: int = 64, skips: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(layers)
        )
        self.residual = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(channels, skips, 1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for dilated, residual, skip in zip(self.dilated, self.residual, self.skip, strict=True):
            padded = nn.functional.pad(x, (dilated.dilation[0], 0))
            signal, gate = dilated(padded).chunk(2, dim=1)
            gated = torch.tanh(signal) * torch.sigmoid(gate)
            part = skip(gated)
            total = part if total is None else total + part
            x = x + residual(gated)
        assert total is not None
        return torch.relu(total)


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 64, 8192)]


def get_init_inputs() -> list[object]:
    return []
