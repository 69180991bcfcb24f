"""A block of GPT-2 in float32, with explicit causal scores."""

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, HEADS = 8, 1024, 768, 12


class Conv1D(nn.Module):
    """Linear layer with its weight as (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return y.view(*x.shape[:-1], -1)


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.c_fc, self.mlp_proj = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        seen = torch.tril(torch.ones(TOKENS, TOKENS, dtype=torch.bool))
        self.register_buffer("seen", seen[None, None], persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            t.view(b, n, HEADS, c // HEADS).transpose(1, 2) for t in self.c_attn(x).split(c, dim=2)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / (c // HEADS) ** 0.5
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=x.device)
        scores = torch.where(self.seen[:, :, :n, :n], scores, lowest)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        y = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, c)
        return self.dropout(self.c_proj(y))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return x + self.dropout(self.mlp_proj(gelu_new(self.c_fc(self.ln_2(x)))))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH)]


def get_init_inputs() -> list[object]:
    return []
