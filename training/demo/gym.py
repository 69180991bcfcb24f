"""Generate small kernel tasks: chains of pointwise operators around a product with a small matrix.

`cuagent train demo` uses them to train a small decoder from scratch. A kernel translates a chain to
C++ or CUDA C++, operator by operator, so a policy can combine operators that it has seen apart. Its
speed depends on how the loop or the launch is written. A kernel can be faster than torch.compile,
which calls a library for the product and so runs three kernels where one suffices. The
demonstrations are in `teacher.py`.
Invariant: each operator of a chain changes the result, so no kernel that omits one is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from cuagent.message import Message
from cuagent.task import Device, Task, load_task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Op:
    """One operator of a task: a line of Python on the tensor x, equivalent C on a row r, and
    plausible but wrong C."""

    torch: str
    c: str
    wrong: str


def pointwise(torch: str, c: str, wrong: str) -> Op:
    """Return a pointwise operator. `c`, `wrong`: right and wrong C statements on one element v of a
    row."""
    return Op(torch, f"for (auto& v : r) {c}", f"for (auto& v : r) {wrong}")


Chain = tuple[Op, ...]
OPS: tuple[Op, ...] = (
    pointwise("x = torch.relu(x)", "v = v > 0 ? v : 0;", "v = v < 0 ? v : 0;"),
    pointwise("x = torch.abs(x)", "v = v < 0 ? -v : v;", "v = v < 0 ? v : -v;"),
    pointwise("x = x * x", "v = v * v;", "v = v * 2;"),
    pointwise("x = -x", "v = -v;", "v = v - 1;"),
    pointwise("x = x * 3", "v = v * 3;", "v = v + 3;"),
    pointwise("x = x + 2", "v = v + 2;", "v = v * 2;"),
    pointwise("x = x - 1", "v = v - 1;", "v = 1 - v;"),
    pointwise("x = x * 0.5", "v = v * 0.5f;", "v = v + 0.5f;"),
    pointwise("x = x.clamp(min=-1)", "v = v < -1 ? -1 : v;", "v = v > -1 ? -1 : v;"),
    pointwise("x = x.clamp(max=2)", "v = v > 2 ? 2 : v;", "v = v < 2 ? 2 : v;"),
    pointwise("x = torch.where(x > 0, x, x * 0.1)", "v = v > 0 ? v : v * 0.1f;", "v = v * 0.1f;"),
    pointwise("x = x / (1 + torch.abs(x))", "v = v / (1 + (v < 0 ? -v : v));", "v = v / (1 + v);"),
    pointwise("x = 1 / (1 + x * x)", "v = 1 / (1 + v * v);", "v = 1 / (1 + v);"),
    pointwise("x = x + x * x", "v = v + v * v;", "v = v + v * 2;"),
    pointwise("x = x * (1 - x)", "v = v * (1 - v);", "v = v * (v - 1);"),
    pointwise("x = 2 - x", "v = 2 - v;", "v = v - 2;"),
)
WIDTH = 4
"""Number of columns of every task's tensors."""
_PRODUCT_C = """\
float s[4] = {{}}; for (int k = 0; k < 16; ++k) s[{column}] += r[{row}] * w[k];
    for (int k = 0; k < 4; ++k) r[k] = s[k];"""
PRODUCT = Op(
    "x = x @ self.w",
    _PRODUCT_C.format(column="k % 4", row="k / 4"),
    _PRODUCT_C.format(column="k / 4", row="k % 4"),
)
"""Operator: the product of each row with a weight matrix. Its wrong form uses the transpose."""
MIN_CHANGE = 0.02
"""Least change of the result when any operator of a valid chain is left out, as a share of the
largest output."""
MAX_OUTPUT = 1e4
"""Largest absolute output of a valid chain."""

TASK = """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn({width}, {width}))

    def forward(self, x):
        {body}
        return x


def get_inputs():
    return [torch.randn({rows}, {width})]


def get_init_inputs():
    return []
"""


def make_chains(length: int, count: int, seed: int) -> list[Chain]:
    """Return up to `count` distinct chains in random order.

    Each has `length` distinct pointwise operators and the product at a random position.
    """
    found: list[Chain] = []
    seen: set[Chain] = set()
    for chain in _shuffled(length, random.Random(seed)):
        if len(found) == count:
            break
        if chain not in seen and is_sound(chain):
            found.append(chain)
        seen.add(chain)
    return found


def _shuffled(length: int, rng: random.Random) -> Iterator[Chain]:
    """Yield all chains if they are few, otherwise random chains that may repeat."""
    if length < 3:
        every = [
            insert_product(ops, at) for ops in permutations(OPS, length) for at in range(length + 1)
        ]
        rng.shuffle(every)
        yield from every
        return
    while True:
        yield draw_chain(length, rng)


def draw_chain(length: int, rng: random.Random) -> Chain:
    """Return a random chain of `length` pointwise operators and the product; it may be invalid."""
    return insert_product(rng.sample(OPS, length), rng.randrange(length + 1))


def insert_product(ops: Sequence[Op], at: int) -> Chain:
    """Return the operators with the matrix product inserted before index `at`."""
    return (*ops[:at], PRODUCT, *ops[at:])


def is_sound(chain: Chain) -> bool:
    """Return True if every operator changes the result, the outputs vary, and none is huge."""
    import torch

    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(64, WIDTH, generator=rng)
    w = torch.randn(WIDTH, WIDTH, generator=rng)
    whole = apply(chain, x, w)
    scale = float(whole.abs().max())
    if not scale < MAX_OUTPUT or float(whole.std()) < MIN_CHANGE * scale:
        return False
    shortened = [apply(chain[:i] + chain[i + 1 :], x, w) for i in range(len(chain))]
    return all(float((whole - other).abs().max()) > MIN_CHANGE * scale for other in shortened)


def apply(chain: Chain, x: Tensor, w: Tensor) -> Tensor:
    """Compute the chain on rows x [N, 4] with weights w [4, 4]."""
    import torch

    model = SimpleNamespace(w=w)
    for op in chain:  # eval runs lines of this module only
        x = eval(op.torch.removeprefix("x = "), {"torch": torch, "x": x, "self": model})
    return x


def make_tasks(folder: Path, chains: Sequence[Chain], device: Device, rows: int) -> list[Task]:
    """Write a Python module for each chain to `folder` and load it as a task. Raises TaskError."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = []
    for chain in chains:
        name = "chain_" + "_".join("w" if op is PRODUCT else str(OPS.index(op)) for op in chain)
        body = "\n        ".join(op.torch for op in chain)
        path = folder / f"{name}.py"
        text = TASK.format(body=body, rows=rows, width=WIDTH)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")  # if equal, another seed may be reading it
        tasks.append(load_task(str(path), device=device))
    return tasks


def chain_of(task: Task) -> Chain:
    """Return the operators of a gym task, read from its source."""
    by_line = {op.torch: op for op in (*OPS, PRODUCT)}
    lines = (line.strip() for line in task.source.splitlines())
    return tuple(by_line[line] for line in lines if line in by_line)


def opening(task: Task) -> list[Message]:
    """Return a short first message for a model of a few million parameters: the device and the
    task's operators."""
    return opening_of(task.device, chain_of(task))


def opening_of(device: Device, chain: Chain) -> list[Message]:
    """Return the first message for the task of a chain, without a task file."""
    body = "\n".join(op.torch for op in chain)
    return [Message("user", f"{device}\n{body}\n")]
