"""Run scripts of users, and describe the result of a capture."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Capture:
    """A captured folder, its check, and the lines that the user sees."""

    manifest: dict[str, Any]
    checked: dict[str, Any]
    text: str
    folder: Path


Run = Callable[..., Capture]


def printed_by(command_python: list[str], folder: Path, script: str) -> str:
    """Return the text that a script in `folder` prints; modules of the folder can be imported."""
    return subprocess.run(
        [*command_python, script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout


def opened(folder: Path, file: str = "task.py") -> Any:
    """Return the reference of a captured task, after it ran once."""
    from cuagent.task import check_runs, load_task, open_reference

    reference = open_reference(load_task(folder / file, device="cpu"))
    check_runs(reference)
    return reference


TRAINING = """
import argparse
import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()
GAIN = 1.5


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x, scale=1.0):
        return x + scale * GAIN * self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(16) for _ in range(2)])
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = torch.compile(model)
    for number in range(args.steps):
        ids = torch.randint(50, (4, 12 if number % 3 else 8))
        loss = F.cross_entropy(step(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""

DECODER = """
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocabulary=60, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.gru = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, vocabulary)

    def forward(self, tokens, state=None):
        y, state = self.gru(self.embed(tokens), state)
        return self.out(y), state


torch.manual_seed(0)
net = Decoder().eval()
with torch.no_grad():
    token, state = torch.randint(0, 60, (4, 1)), None
    for _ in range(8):
        scores, state = net(token, state)
        token = scores.argmax(-1)
"""

BUSY = '''
import torch
from torch import nn


class Slow(nn.Module):
    """Softmax of a sum, in parts that a fused kernel replaces."""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        y = torch.sigmoid(x + self.bias) * torch.tanh(x) + torch.sin(x) * torch.cos(x)
        return torch.softmax(y, -1)


torch.manual_seed(0)
net = Slow(512).eval()
with torch.inference_mode():
    for number in range(12):
        net(torch.randn(1024 if number % 3 else 256, 512))
'''

SMALL = """
import torch
from torch import nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
        self.unused = Part()

    def forward(self, x):
        return self.part(x)


net = Net().eval()
"""
