"""A block of timm's ViT with layer scale."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 3
        self.norm1, self.norm2 = nn.LayerNorm(192, eps=1e-6), nn.LayerNorm(192, eps=1e-6)
        self.qkv, self.proj = nn.Linear(192, 576), nn.Linear(192, 192)
        self.fc1, self.fc2 = nn.Linear(192, 768), nn.Linear(768, 192)
        self.ls1, self.ls2 = LayerScale(192), LayerScale(192)

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attend(self.norm1(x)))
        return x + self.ls2(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 197, 192)]


def get_init_inputs() -> list[object]:
    return []
