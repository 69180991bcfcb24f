"""Modules for tests of the expert, each with its inputs; `task_text` writes them as task files."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
LAYER_TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
"""Text of a task with one layer `self.c` and one input `x`."""


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24), nn.LayerNorm(24))

    def forward(self, x):
        return x + self.net(x)


class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(5, 5, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.conv2 = nn.Conv2d(5, 5, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(5)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(self.norm(x)).view(b, t, 3, 8).transpose(1, 2) for f in self.qkv)
        scores = q @ k.transpose(-2, -1) * 0.3
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return x + (weights @ v).transpose(1, 2).reshape(b, t, c)


class GroupNormSilu(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(3, 12)

    def forward(self, x):
        return F.silu(self.norm(x)) * 2


class LogSoftmaxChannels(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x * 0.5, dim=1) + 1


class SeveralOutputs(nn.Module):
    def forward(self, x, y):
        d = x - y
        return {"rows": (d * d).sum(-1), "rest": [torch.exp(-d.abs()), d.mean()]}


class EmbeddingNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 20)
        self.places = nn.Parameter(torch.randn(7, 20))
        self.norm = nn.LayerNorm(20)

    def forward(self, ids):
        return self.norm(self.tokens(ids) + self.places)


class CrossEntropy(nn.Module):
    def forward(self, x, labels):
        return F.cross_entropy(x, labels, ignore_index=3)


class Normalize(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=1) * 3


class RowScaling(nn.Module):
    def forward(self, a, b):
        return torch.diag(a) @ b


class SumOfFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(30, 17))

    def forward(self, x):
        return torch.sum(torch.matmul(x, self.weight.T) / 2, dim=1, keepdim=True) * 1.5


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 24, bias=False)
        self.up = nn.Linear(16, 24, bias=False)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


class SmoothLoss(nn.Module):
    def forward(self, x, y):
        return F.smooth_l1_loss(x, y) + F.kl_div(x.log_softmax(1), y.softmax(1))


class SqueezeAndExcite(nn.Module):
    """Module in which one kernel reads another kernel's result through views."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x, skip):
        gate = torch.sigmoid(self.up(x.mean((2, 3))))
        y = x * gate[:, :, None, None] + skip
        return y, y.mean(dim=(1, 2, 3))


class LongMean(nn.Module):
    def forward(self, x, y):
        return torch.mean((x - y) ** 2)


class NestedInputs(nn.Module):
    def forward(self, xs, k):
        return torch.tanh(xs[0] * 2 + xs[1]["q"]) * k


class RunningMean(nn.Module):
    def forward(self, x):
        total = torch.cumsum(x.exp(), 1)
        left = x.flip(2).cumsum(2).flip(2)
        return total / torch.arange(1, 8, device=x.device)[:, None], left * 2


class PooledFeatures(nn.Module):
    def forward(self, x):
        h = F.max_pool2d(F.relu(x), 3, 2, 1)
        up = F.interpolate(F.avg_pool2d(h, 2, 2), scale_factor=2, mode="bilinear")
        return F.adaptive_avg_pool2d(h * up, (3, 2)), F.interpolate(h, size=(5, 9)) + 1


class LookupScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(30, 12) for _ in range(3)])

    def forward(self, ids, x):
        parts = [table(ids[:, k]) for k, table in enumerate(self.tables)]
        scores = (torch.stack(parts, 1) * x[:, None]).sum(-1)
        best, place = (scores * 2).max(1)
        return torch.cat(parts, 1).relu() + 1, best, place, scores.argmin(0)


class OneElement(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * 3) + 1


INPUTS: dict[type[nn.Module], str] = {
    Mlp: "torch.randn(11, 24)",
    BasicBlock: "torch.randn(2, 5, 9, 7)",
    Attention: "torch.randn(2, 13, 24)",
    GroupNormSilu: "torch.randn(2, 12, 5, 7)",
    LogSoftmaxChannels: "torch.randn(3, 19, 11, 7)",
    SeveralOutputs: "torch.randn(5, 37), torch.randn(5, 37)",
    EmbeddingNorm: "torch.randint(0, 50, (4, 7))",
    CrossEntropy: "torch.randn(29, 10), torch.randint(0, 10, (29,))",
    Normalize: "torch.randn(40, 101)",
    RowScaling: "torch.randn(31), torch.randn(31, 12)",
    SumOfFeatures: "torch.randn(9, 17)",
    Gated: "torch.randn(6, 16)",
    SmoothLoss: "torch.randn(13, 21), torch.randn(13, 21)",
    SqueezeAndExcite: "torch.randn(3, 8, 5, 7), torch.randn(3, 8, 5, 7)",
    LongMean: "torch.randn(3, 70001), torch.randn(3, 70001)",
    NestedInputs: "[torch.randn(3, 4), {'q': torch.randn(3, 4)}], 2.0",
    RunningMean: "torch.randn(3, 7, 11)",
    PooledFeatures: "torch.randn(2, 3, 16, 15)",
    LookupScores: "torch.randint(0, 30, (9, 3)), torch.randn(9, 12)",
    OneElement: "torch.randn(1)",
}


def task_text(cls: type[nn.Module], inputs: str | None = None) -> str:
    """Return the source text of a task file in KernelBench's form for one of the classes."""
    body = textwrap.dedent(inspect.getsource(cls))
    given = INPUTS[cls] if inputs is None else inputs
    return (
        f"{HEADER}\n{body}\n\ndef get_inputs():\n    return [{given}]\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


def mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    match value:
        case torch.Tensor():
            return change(value)
        case list():
            return [mapped(change, item) for item in value]
        case dict():
            return {key: mapped(change, item) for key, item in value.items()}
    return value
