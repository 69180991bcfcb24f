"""A gym of small kernel tasks: chains of pointwise operators over a matrix.

For: `cuagent train demo`, where a small decoder learns from nothing. A kernel translates a chain to
C++ or CUDA C++, line by line, so a policy can learn to compose what it has seen apart; how fast the
kernel is depends on how the loop or the launch is written. Who shows it is `teacher.py`.
Invariant: in every chain each operator changes the result, so that no kernel without it is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.message import Message
from cuagent.task import Device, Task, load_task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Op:
    """One operator: a line of Python on x, a line of C on v, and a wrong line that looks right."""

    torch: str
    c: str
    wrong: str


Chain = tuple[Op, ...]
OPS: tuple[Op, ...] = (
    Op("x = torch.relu(x)", "v = v > 0 ? v : 0;", "v = v < 0 ? v : 0;"),
    Op("x = torch.abs(x)", "v = v < 0 ? -v : v;", "v = v < 0 ? v : -v;"),
    Op("x = x * x", "v = v * v;", "v = v * 2;"),
    Op("x = -x", "v = -v;", "v = v - 1;"),
    Op("x = x * 3", "v = v * 3;", "v = v + 3;"),
    Op("x = x + 2", "v = v + 2;", "v = v * 2;"),
    Op("x = x - 1", "v = v - 1;", "v = 1 - v;"),
    Op("x = x * 0.5", "v = v * 0.5f;", "v = v + 0.5f;"),
    Op("x = x.clamp(min=-1)", "v = v < -1 ? -1 : v;", "v = v > -1 ? -1 : v;"),
    Op("x = x.clamp(max=2)", "v = v > 2 ? 2 : v;", "v = v < 2 ? 2 : v;"),
    Op("x = torch.where(x > 0, x, x * 0.1)", "v = v > 0 ? v : v * 0.1f;", "v = v * 0.1f;"),
    Op("x = x / (1 + torch.abs(x))", "v = v / (1 + (v < 0 ? -v : v));", "v = v / (1 + v);"),
    Op("x = 1 / (1 + x * x)", "v = 1 / (1 + v * v);", "v = 1 / (1 + v);"),
    Op("x = x + x * x", "v = v + v * v;", "v = v + v * 2;"),
    Op("x = x * (1 - x)", "v = v * (1 - v);", "v = v * (v - 1);"),
    Op("x = 2 - x", "v = 2 - v;", "v = v - 2;"),
)
LEAST = 0.02
"""Share of the largest output by which an operator must change something."""
LARGEST = 1e4

TASK = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        {body}
        return x


def get_inputs():
    return [torch.randn({rows}, {columns})]


def get_init_inputs():
    return []
"""


def make_chains(length: int, count: int, seed: int) -> list[Chain]:
    """Distinct chains without an operator twice, in a random order; fewer where there are fewer."""
    found: list[Chain] = []
    seen: set[Chain] = set()
    for chain in _shuffled(length, random.Random(seed)):
        if len(found) == count:
            break
        if chain not in seen and sound(chain):
            found.append(chain)
        seen.add(chain)
    return found


def _shuffled(length: int, luck: random.Random) -> Iterator[Chain]:
    """All of them where they are few, else draws that may repeat."""
    if length < 4:
        every = list(permutations(OPS, length))
        luck.shuffle(every)
        yield from every
        return
    while True:
        yield tuple(luck.sample(OPS, length))


def sound(chain: Chain) -> bool:
    """Whether every operator matters, the outputs differ, and none is huge."""
    import torch

    x = torch.linspace(-3, 3, 241)
    whole = apply(chain, x)
    scale = float(whole.abs().max())
    if not scale < LARGEST or float(whole.std()) < LEAST * scale:
        return False
    without = [apply(chain[:i] + chain[i + 1 :], x) for i in range(len(chain))]
    return all(float((whole - other).abs().max()) > LEAST * scale for other in without)


def apply(chain: Chain, x: Tensor) -> Tensor:
    """What the chain computes."""
    import torch

    for op in chain:
        x = eval(op.torch.removeprefix("x = "), {"torch": torch, "x": x})  # our own lines
    return x


def make_tasks(
    folder: Path, chains: Sequence[Chain], device: Device, shape: tuple[int, int]
) -> list[Task]:
    """Write one module for each chain and load it as a task. Raises TaskError."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = []
    for chain in chains:
        name = "chain_" + "_".join(str(OPS.index(op)) for op in chain)
        body = "\n        ".join(op.torch for op in chain)
        path = folder / f"{name}.py"
        path.write_text(TASK.format(body=body, rows=shape[0], columns=shape[1]), encoding="utf-8")
        tasks.append(load_task(str(path), device=device))
    return tasks


def chain_of(task: Task) -> Chain:
    """The operators of a gym task, from its source."""
    by_line = {op.torch: op for op in OPS}
    lines = (line.strip() for line in task.source.splitlines())
    return tuple(by_line[line] for line in lines if line in by_line)


def opening(task: Task) -> list[Message]:
    """A short one, for a model of a few million parameters: what to compute, and nothing else."""
    return opening_of(task.device, chain_of(task))


def opening_of(device: Device, chain: Chain) -> list[Message]:
    """The opening of a task that need not exist as a file."""
    body = "\n".join(op.torch for op in chain)
    return [Message("user", f"{device}\n{body}\n")]
