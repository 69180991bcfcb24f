"""A decoder's attention for one new token in bf16: rotary embedding, cache, grouped heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(256, eps=1e-6)
        self.qkv = nn.Linear(256, 8 * 32 + 2 * 2 * 32, bias=False)
        self.out = nn.Linear(256, 256, bias=False)
        self.register_buffer("rates", 10000 ** (-torch.arange(0, 32, 2) / 32))
        self.norm.bfloat16(), self.qkv.bfloat16(), self.out.bfloat16()

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = x.shape[0]
        q, k, v = self.qkv(self.norm(x)).split((256, 64, 64), dim=-1)
        q = q.view(n, 1, 8, 32).transpose(1, 2)
        k, v = (t.view(n, 1, 2, 32).transpose(1, 2) for t in (k, v))
        angle = (position[:, None] * self.rates).repeat(1, 2)[:, None, None, :]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        keys = torch.cat((keys, k), dim=2)
        values = torch.cat((values, v), dim=2)
        seen = torch.arange(keys.shape[2]) >= keys.shape[2] - 1 - position[:, None]
        y = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=seen[:, None, None, :], enable_gqa=True
        )
        return x + self.out(y.transpose(1, 2).reshape(n, 1, 256)), keys, values


def get_inputs() -> list[Tensor]:
    cache = torch.randn(2, 4, 2, 127, 32).bfloat16()
    return [torch.randn(4, 1, 256).bfloat16(), cache[0], cache[1], torch.tensor([127, 90, 64, 12])]


def get_init_inputs() -> list[object]:
    return []
