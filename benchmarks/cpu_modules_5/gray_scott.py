"""Two steps of a reaction-diffusion system in three dimensions with periodic borders."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stencil = torch.zeros(3, 3, 3)
        stencil[1, 1, 0] = stencil[1, 1, 2] = stencil[1, 0, 1] = stencil[1, 2, 1] = 1
        stencil[0, 1, 1] = stencil[2, 1, 1] = 1
        stencil[1, 1, 1] = -6
        self.register_buffer("stencil", stencil.expand(2, 1, 3, 3, 3).contiguous())
        self.register_buffer("diffusion", torch.tensor([0.16, 0.08])[:, None, None, None])

    def forward(self, state: Tensor) -> Tensor:
        for _ in range(2):
            padded = F.pad(state, (1, 1, 1, 1, 1, 1), mode="circular")
            spread = self.diffusion * F.conv3d(padded, self.stencil, groups=2)
            u, v = state[:, 0], state[:, 1]
            react = u * v * v
            change = torch.stack((0.06 * (1 - u) - react, react - 0.122 * v), dim=1)
            state = (state + spread + change).clamp(0, 1)
        return state


def get_inputs() -> list[Tensor]:
    return [torch.rand(1, 2, 32, 32, 32)]


def get_init_inputs() -> list[object]:
    return []
