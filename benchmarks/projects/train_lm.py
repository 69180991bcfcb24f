"""Train a small language model with AdamW, label smoothing and a z-loss."""

import torch
import torch.nn.functional as F
from common import finished, optimized, options
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, 2 * dim, bias=False)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Loss(nn.Module):
    """Cross entropy with label smoothing and the z-loss of PaLM."""

    def __init__(self, smoothing: float = 0.1, z: float = 1e-4) -> None:
        super().__init__()
        self.smoothing, self.z = smoothing, z

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        top = logits.float()
        total = torch.logsumexp(top, -1)
        right = top.gather(-1, targets[:, None])[:, 0]
        nll = total - right
        smooth = total - top.mean(-1)
        loss = (1 - self.smoothing) * nll + self.smoothing * smooth + self.z * total.square()
        return loss.mean()


class Model(nn.Module):
    def __init__(self, words: int, dim: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, dim // 32) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, words, bias=False)
        self.loss = Loss()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids[:, :-1])
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(self.norm(x)).flatten(0, 1), ids[:, 1:].flatten())


def main() -> None:
    given = options(steps=8)
    big = given.device == "cuda"
    words, dim, depth, shape = (32000, 512, 4, (4, 513)) if big else (8192, 128, 2, (4, 129))
    model = optimized(Model(words, dim, depth).to(given.device), given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(words, (given.batches, *shape), device=given.device)

    def step(number: int) -> dict[str, list[Tensor]]:
        loss = model(data[number])
        optimizer.zero_grad()
        loss.backward()
        # Only the first step has the same parameters in all runs.
        first = [p.grad.cpu() for p in model.parameters() if number == 0 and given.save]
        optimizer.step()
        return {"outputs": [loss.detach()], "gradients": first}

    finished(step, given)


if __name__ == "__main__":
    main()
