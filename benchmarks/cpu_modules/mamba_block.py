"""A block of Mamba with its scan as a loop over time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state, self.rank = 128, 16, 8
        self.into = nn.Linear(64, 256, bias=False)
        self.conv = nn.Conv1d(128, 128, 4, groups=128, padding=3)
        self.x_proj = nn.Linear(128, 40, bias=False)
        self.dt_proj = nn.Linear(8, 128)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, 17).float().repeat(128, 1)))
        self.d = nn.Parameter(torch.ones(128))
        self.out = nn.Linear(128, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        x, z = self.into(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :n].transpose(1, 2))
        dt, u, c = self.x_proj(x).split([self.rank, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        a = -torch.exp(self.a_log)
        state = x.new_zeros(b, self.inner, self.state)
        outputs = []
        for t in range(n):
            decay = torch.exp(dt[:, t, :, None] * a)
            state = state * decay + (dt[:, t] * x[:, t])[..., None] * u[:, t, None, :]
            outputs.append((state * c[:, t, None, :]).sum(-1))
        y = torch.stack(outputs, dim=1) + self.d * x
        return self.out(y * F.silu(z))


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 48, 64)]


def get_init_inputs() -> list[object]:
    return []
