"""Self-attention over a padded batch: LayerNorm, causal attention up to each length, projection.

The sizes are those of a small language model, for a GPU. On a CPU give smaller ones:

    cuagent optimize examples/masked_attention.py --init "128, 4" \
        --inputs "f32[2,64,128], i64[2]<65"
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, TOKENS, WIDTH, HEADS = 8, 1024, 1024, 16


class Model(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        place = torch.arange(tokens, device=x.device)
        seen = (place <= place[:, None]) & (place < lengths[:, None, None])
        mask = seen | (place == place[:, None])  # a padded token attends to itself
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        return x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH), torch.randint(1, TOKENS + 1, (BATCH,))]


def get_init_inputs() -> list[int]:
    return [WIDTH, HEADS]
