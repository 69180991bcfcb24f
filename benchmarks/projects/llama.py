"""Score given continuations of prompts, token by token, with a Llama-like decoder and a KV cache.

The tokens are given because one rounding more would change a sampled token and all later ones.
"""

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
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache["k"], cache["v"] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(dim, heads)
        self.mlp = MLP(dim, 4 * dim)

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        return self.mlp(self.attention(x, cache))


class Llama(nn.Module):
    def __init__(self, words: int, dim: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(Layer(dim, dim // 64) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, ids: Tensor, caches: list[dict[str, Tensor]]) -> Tensor:
        x = self.embed(ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return self.head(self.norm(x[:, -1]))


def main() -> None:
    given = options(steps=6)
    big = given.device == "cuda"
    words, dim, depth = (4096, 2048, 8) if big else (1024, 256, 2)
    model = Llama(words, dim, depth).eval().to(given.device, torch.bfloat16 if big else None)
    optimized(model, given)
    texts = torch.randint(words, (given.batches, 4, 64 + 8), device=given.device)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        caches: list[dict[str, Tensor]] = [{} for _ in model.layers]
        prompts, following = texts[number].split([64, 8], 1)
        scores = [model(prompts, caches)]
        scores += [model(tokens, caches) for tokens in following.split(1, 1)]
        return torch.stack(scores)

    finished(step, given)


if __name__ == "__main__":
    main()
