"""A block of a diffusion transformer (DiT-B/2) with scale, shift and gate, in bf16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.to(torch.bfloat16).eval()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        steps = torch.arange(128, dtype=torch.float32, device=x.device)
        angles = time[:, None].float() * torch.pow(10000.0, -steps / 128)
        embedded = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1).to(x.dtype)
        parts = self.modulation(self.time(embedded)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        b, n, c = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + gate1 * self.out(h)
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.mlp(h)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(32, 256, 768, dtype=torch.bfloat16),
        torch.randint(0, 1000, (32,)).float(),
    ]


def get_init_inputs() -> list[object]:
    return []
