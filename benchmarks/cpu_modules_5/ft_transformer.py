"""A transformer of tabular data: tokens of numbers and categories, one layer, a head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(10, 48)),
            nn.Parameter(torch.randn(16, 48)),
        )
        self.table = nn.Embedding(6 * 20, 48)
        self.register_buffer("offsets", torch.arange(6) * 20)
        self.start = nn.Parameter(torch.randn(48))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(48), nn.LayerNorm(48), nn.LayerNorm(48)
        self.qkv, self.proj = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down = nn.Linear(48, 128), nn.Linear(64, 48)
        self.head = nn.Linear(48, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        n = numbers.shape[0]
        tokens = numbers[..., None] * self.weight
        tokens = torch.cat((tokens, self.table(categories + self.offsets)), dim=1) + self.bias
        x = torch.cat((self.start.expand(n, 1, 48), tokens), dim=1)
        q, k, v = self.qkv(self.norm1(x)).view(n, 17, 3, 4, 12).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-2, -1)) * 12**-0.5).softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(n, 17, 48))
        a, b = self.up(self.norm2(x)).chunk(2, dim=-1)
        x = x + self.down(a * F.relu(b))
        return self.head(F.relu(self.norm3(x[:, 0])))


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 10), torch.randint(0, 20, (64, 6))]


def get_init_inputs() -> list[object]:
    return []
