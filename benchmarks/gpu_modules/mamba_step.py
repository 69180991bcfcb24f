"""A Mamba block of the 2.8 B model for one new token of each sequence: bf16, states in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, WIDTH, INNER, STATES, RANK, TAPS = 128, 2560, 5120, 16, 160, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.in_proj = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.conv_weight = nn.Parameter(torch.randn(INNER, TAPS) * 0.5)
        self.conv_bias = nn.Parameter(torch.zeros(INNER))
        self.x_proj = nn.Linear(INNER, RANK + 2 * STATES, bias=False)
        self.dt_proj = nn.Linear(RANK, INNER)
        self.out_proj = nn.Linear(INNER, WIDTH, bias=False)
        self.to(torch.bfloat16)
        self.a_log = nn.Parameter(torch.arange(1, STATES + 1).float().log().repeat(INNER, 1))
        self.d = nn.Parameter(torch.ones(INNER))

    def forward(
        self, x: Tensor, conv_state: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        u, z = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        conv_state = torch.cat((conv_state[:, :, 1:], u[:, :, None]), dim=-1)
        u = F.silu((conv_state * self.conv_weight).sum(-1) + self.conv_bias)
        dt, b, c = self.x_proj(u).split((RANK, STATES, STATES), dim=-1)
        dt = F.softplus(self.dt_proj(dt).float())
        decay = torch.exp(dt[:, :, None] * -torch.exp(self.a_log))
        step = (dt * u.float())[:, :, None] * b.float()[:, None, :]
        state = state * decay + step
        y = (state * c.float()[:, None, :]).sum(-1) + self.d * u.float()
        y = y.to(x.dtype) * F.silu(z)
        return x + self.out_proj(y), conv_state, state


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, WIDTH).bfloat16(),
        torch.randn(BATCH, INNER, TAPS).bfloat16(),
        torch.randn(BATCH, INNER, STATES),
    ]


def get_init_inputs() -> list[object]:
    return []
