"""A gym of small kernel tasks, and a teacher that writes kernels for them with human mistakes.

For: `cuagent train demo`, where a small decoder learns from nothing. A task is a chain of pointwise
operators over a matrix; its kernel translates the chain to C++ or CUDA C++, line by line, so a
policy can learn to compose what it has seen apart. The teacher is mediocre by construction: it
never looks at a timing, picks its loop or launch at random and errs as people do. Everything it
writes goes through the agent's tools and is judged for real.
Not covered: anything that `cuagent.expert` is for; the teacher is no optimizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cuagent.message import Finish, Message, Reply, ToolCall
from cuagent.models.model import OnText, ToolSpec
from cuagent.task import Device, Task, load_task


@dataclass(frozen=True)
class Op:
    """One operator: a line of Python on x, a line of C on v, and a wrong line that looks right."""

    torch: str
    c: str
    wrong: str


OPS: tuple[Op, ...] = (
    Op("x = torch.relu(x)", "v = v > 0 ? v : 0;", "v = v < 0 ? v : 0;"),
    Op("x = torch.abs(x)", "v = v < 0 ? -v : v;", "v = v < 0 ? v : -v;"),
    Op("x = x * x", "v = v * v;", "v = v * 2;"),
    Op("x = -x", "v = -v;", "v = v - 1;"),
    Op("x = x * 3", "v = v * 3;", "v = v + 3;"),
    Op("x = x + 2", "v = v + 2;", "v = v * 2;"),
    Op("x = x - 1", "v = v - 1;", "v = 1 - v;"),
    Op("x = x * 0.5", "v = v * 0.5f;", "v = v + 0.5f;"),
)

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

CPU_MODULE = """\
import torch
from cuagent.kernels import load

f = load("kernels/f.cpp").f


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        f(y, x, x.numel())
        return y
"""
CPU_KERNEL = """\
extern "C" void f(float* y, const float* x, long n) {{
{pragma}  for (long i = 0; i < {bound}; ++i) {{
    float v = x[i];
{lines}    y[i] = v;
  }}
}}
"""
CUDA_MODULE = """\
import torch
from cuagent.kernels import load

f = load("kernels/f.cu").f


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        f[{grid}, {block}](y, x, n)
        return y
"""
CUDA_KERNEL = """\
extern "C" __global__ void f(float* y, const float* x, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < {bound}; i += gridDim.x * blockDim.x) {{
    float v = x[i];
{lines}    y[i] = v;
  }}
}}
"""
PRAGMAS = ("", "#pragma omp simd\n", "#pragma omp parallel for\n")
BLOCKS = (64, 256)
GRIDS = ("1", "(n + {block} - 1) // {block}")
"""From one block (slow, right) to one thread an element."""


def make_tasks(
    folder: Path, chains: Sequence[Sequence[Op]], device: Device, shape: tuple[int, int]
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


def make_chains(length: int, count: int, seed: int) -> list[tuple[Op, ...]]:
    """Distinct chains without an operator twice, in a random order."""
    every = [c for c in product(OPS, repeat=length) if len(set(c)) == length]
    return random.Random(seed).sample(every, min(count, len(every)))


def chain_of(task: Task) -> tuple[Op, ...]:
    """The operators of a gym task, from its source."""
    by_line = {op.torch: op for op in OPS}
    lines = (line.strip() for line in task.source.splitlines())
    return tuple(by_line[line] for line in lines if line in by_line)


@dataclass(frozen=True)
class Habits:
    """How often the teacher errs; each a probability."""

    wrong_line: float = 0.25
    missing_line: float = 0.15
    wrong_bound: float = 0.1
    syntax: float = 0.1
    wrong_tool: float = 0.1
    gives_up: float = 0.3
    """After a rejection, instead of mending the kernel."""


class Teacher:
    """`cuagent.models.model.Model` that writes, verifies, mends perhaps, and submits."""

    name = "teacher"

    def __init__(self, task: Task, seed: int, habits: Habits | None = None) -> None:
        self.cuda = task.device == Device.CUDA
        self.chain = chain_of(task)
        self.habits = habits or Habits()
        self.luck = random.Random(seed)

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        last = messages[-1]
        if last.role != "tool":
            calls = self._write(careful=False)
        elif last.is_error and self.luck.random() >= self.habits.gives_up:
            calls = self._write(careful=True)
        else:
            calls = [("submit", {})]
        made = tuple(
            ToolCall(f"t{len(messages)}_{n}", name, json.dumps(arguments))
            for n, (name, arguments) in enumerate(calls)
        )
        message = Message("assistant", "", made, sampled=True)
        return Reply(message, Finish.TOOL_CALLS, cost=0.0)

    def _write(self, careful: bool) -> list[tuple[str, dict[str, str]]]:
        """The files and a call of verify; a careful one errs no more."""
        p = self.luck.random
        h = self.habits
        lines = [op.wrong if not careful and p() < h.wrong_line / 2 else op.c for op in self.chain]
        if not careful and p() < h.missing_line:
            lines.pop(self.luck.randrange(len(lines)))
        if not careful and p() < h.syntax:
            lines[:1] = [line.rstrip(";") for line in lines[:1]]
        text = "".join(f"    {line}\n" for line in lines)
        bound = "n - 1" if not careful and p() < h.wrong_bound else "n"
        check = "check" if not careful and p() < h.wrong_tool else "verify"
        if not self.cuda:
            pragma = self.luck.choice(PRAGMAS)
            kernel = CPU_KERNEL.format(lines=text, bound=bound, pragma=pragma)
            return [("write", {"path": "kernels/f.cpp", "text": kernel}), (check, {})]
        block = self.luck.choice(BLOCKS)
        grid = self.luck.choice(GRIDS).format(block=block)
        module = CUDA_MODULE.format(grid=grid, block=block)
        kernel = CUDA_KERNEL.format(lines=text, bound=bound)
        return [
            ("write", {"path": "model_new.py", "text": module}),
            ("write", {"path": "kernels/f.cu", "text": kernel}),
            (check, {}),
        ]


def given(task: Task) -> dict[str, str]:
    """What lies in the work folder. On a GPU the launch is worth choosing, so the policy writes
    model_new.py itself; on a CPU there is nothing in it to choose."""
    return {} if task.device == Device.CUDA else {"model_new.py": CPU_MODULE}


def opening(task: Task) -> list[Message]:
    """A short one, for a model of a few million parameters: what to compute, and nothing else."""
    body = "\n".join(op.torch for op in chain_of(task))
    return [Message("user", f"{task.device}\n{body}")]
