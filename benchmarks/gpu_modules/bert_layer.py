"""A layer of BERT base in fp16, with padded sentences."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, INNER, HEADS = 32, 384, 768, 3072, 12


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.into, self.out = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.half()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            m(x).view(b, n, HEADS, -1).transpose(1, 2) for m in (self.query, self.key, self.value)
        )
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = self.attention_out(y.transpose(1, 2).reshape(b, n, WIDTH))
        x = self.attention_norm(self.dropout(y) + x)
        y = self.out(F.gelu(self.into(x)))
        return self.norm(self.dropout(y) + x)


def get_inputs() -> list[Tensor]:
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (BATCH, 1))
    mask = (torch.arange(TOKENS)[None] < lengths).long()
    return [torch.randn(BATCH, TOKENS, WIDTH).half(), mask]


def get_init_inputs() -> list[object]:
    return []
