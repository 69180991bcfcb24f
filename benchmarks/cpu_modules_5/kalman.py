"""Kalman filters with a constant-velocity model, one scalar measurement in each step."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        dt = 0.1
        self.register_buffer("move", torch.tensor([[1, dt, dt**2 / 2], [0, 1, dt], [0, 0, 1]]))
        self.noise = nn.Parameter(torch.tensor([0.01, 0.02, 0.05]))
        self.error = nn.Parameter(torch.tensor(0.3))

    def forward(self, measured: Tensor) -> tuple[Tensor, Tensor]:
        n = measured.shape[0]
        x = measured.new_zeros(n, 3)
        p = torch.eye(3, dtype=measured.dtype).expand(n, 3, 3)
        states = []
        for t in range(measured.shape[1]):
            x = x @ self.move.T
            p = self.move @ p @ self.move.T + torch.diag(self.noise)
            gain = p[:, :, 0] / (p[:, 0, 0] + self.error)[:, None]
            x = x + gain * (measured[:, t] - x[:, 0])[:, None]
            p = p - gain[:, :, None] * p[:, None, 0, :]
            states.append(x)
        return torch.stack(states, dim=1), p


def get_inputs() -> list[Tensor]:
    return [torch.randn(128, 24)]


def get_init_inputs() -> list[object]:
    return []
