"""One step of a decoder: new keys are written to a cache, which is returned."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, keys, values, lengths):
        rows = torch.arange(q.shape[0], device=q.device)
        keys = keys.index_put((rows, lengths), k)
        values = values.index_put((rows, lengths), v)
        scores = torch.einsum("bd,btd->bt", q, keys) * q.shape[-1] ** -0.5
        seen = torch.arange(keys.shape[1], device=q.device) <= lengths[:, None]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("bt,btd->bd", weights, values), keys, values


def get_inputs():
    new = [torch.randn(4, 16) for _ in range(3)]
    caches = [torch.randn(4, 20, 16) for _ in range(2)]
    return [*new, *caches, torch.full((4,), 11)]


def get_init_inputs():
    return []
