"""The teacher of the gym: it writes kernels as a hurried person does, and never looks at a clock.

For: the demonstrations that the base policy imitates. Mediocre by construction: it picks loop,
type and launch at random, mostly slow ones, and errs at known rates; so there is something left to
learn from verdicts. What it plays goes through the agent's tools and is judged for real; first
turns can also be written down alone (`first_turn`), for then no verdict enters the text.
Not covered: anything that `cuagent.expert` is for; the teacher is no optimizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cuagent.attempt import Attempt
from cuagent.message import Finish, Message, Reply, ToolCall
from cuagent.models.model import OnText, ToolSpec
from cuagent.task import Device, Task
from cuagent.training.gym import Chain, chain_of

CPU_MODULE = """\
import torch
from cuagent.kernels import load

f = load("kernels/f.cpp").f


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(4, 4))

    def forward(self, x):
        y = torch.empty_like(x)
        f(y, x, self.w, x.shape[0])
        return y
"""
CPU_ROWS = """\
extern "C" void f(float* y, const float* x, const float* w, long n) {{
{pragma}  for (long i = 0; i < {bound}; ++i) {{
    {type} r[4] = {{x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]}};
{lines}    for (int k = 0; k < 4; ++k) y[4 * i + k] = r[k];
  }}
}}
"""
CPU_ELEMENTS = """\
extern "C" void f(float* y, const float* x, const float* w, long n) {{
{pragma}  for (long j = 0; j < 4 * ({bound}); ++j) {{
    long i = j / 4;
    {type} r[4] = {{x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]}};
{lines}    y[j] = r[j % 4];
  }}
}}
"""
CUDA_MODULE = """\
import torch
from cuagent.kernels import load

f = load("kernels/f.cu").f


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(4, 4))

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[0]
        f[{grid}, 256](y, x, self.w, n)
        return y
"""
CUDA_KERNEL = """\
extern "C" __global__ void f(float* y, const float* x, const float* w, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < {bound}; i += gridDim.x * blockDim.x) {{
    {type} r[4] = {{x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]}};
{lines}    for (int k = 0; k < 4; ++k) y[4 * i + k] = r[k];
  }}
}}
"""

Choices = tuple[tuple[str, float], ...]
"""What can be written, and how often the teacher writes it."""
LOOPS: Choices = ((CPU_ROWS, 0.4), (CPU_ELEMENTS, 0.6))
"""By rows, or one output at a time, which computes every row four times."""
TYPES: Choices = (("float", 0.35), ("double", 0.15), ("volatile float", 0.5))
PRAGMAS: Choices = (
    ("", 0.2),
    ("#pragma omp parallel for\n", 0.4),
    ("#pragma omp parallel for schedule(dynamic)\n", 0.4),
)
GRIDS: Choices = (("1", 0.5), ("8", 0.3), ("(n + 255) // 256", 0.2))
"""From one block (slow, right) to one thread a row."""


@dataclass(frozen=True)
class ErrorRates:
    """How often the teacher errs; each a probability."""

    wrong_line: float = 0.06
    """For each operator."""
    missing_line: float = 0.1
    wrong_bound: float = 0.1
    syntax: float = 0.08
    wrong_tool: float = 0.05
    gives_up: float = 0.3
    """After a rejection, instead of mending the kernel."""


class Teacher:
    """`cuagent.models.model.Model` that writes, verifies, mends perhaps, and submits."""

    name = "teacher"

    def __init__(
        self, device: Device, chain: Chain, seed: int, errors: ErrorRates | None = None
    ) -> None:
        self.cuda = device == Device.CUDA
        self.chain = chain
        self.errors = errors or ErrorRates()
        self.rng = random.Random(seed)

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        last = messages[-1]
        if last.role != "tool":
            calls = self._write(careful=False)
        elif last.is_error and self.rng.random() >= self.errors.gives_up:
            calls = self._write(careful=True)
        else:
            calls = [("submit", {})]
        made = tuple(
            ToolCall(f"t{len(messages)}_{n}", name, json.dumps(arguments))
            for n, (name, arguments) in enumerate(calls)
        )
        message = Message("assistant", "", made, sampled=True)
        return Reply(message, Finish.TOOL_CALLS, cost=0.0)

    def first_turn(self, opening: Sequence[Message]) -> list[Message]:
        """The opening and what the teacher does first."""
        return [*opening, self.query(opening, (), lambda text, kind: None).message]

    def attempt(self, initial_files: Mapping[str, str]) -> Attempt:
        """What it would write now, without an agent."""
        written = {
            a["path"]: a["text"] for name, a in self._write(careful=False) if name == "write"
        }
        return Attempt(tuple(sorted({**initial_files, **written}.items())))

    def _write(self, careful: bool) -> list[tuple[str, dict[str, str]]]:
        """The files and a call of verify; a careful one errs no more."""
        bound = "n - 1" if self._errs(self.errors.wrong_bound, careful) else "n"
        check = "check" if self._errs(self.errors.wrong_tool, careful) else "verify"
        lines = "".join(f"    {line}\n" for line in self._lines(careful))
        kind = self._pick(TYPES)
        if not self.cuda:
            loop, pragma = self._pick(LOOPS), self._pick(PRAGMAS)
            kernel = loop.format(lines=lines, bound=bound, pragma=pragma, type=kind)
            return [("write", {"path": "kernels/f.cpp", "text": kernel}), (check, {})]
        module = CUDA_MODULE.format(grid=self._pick(GRIDS))
        kernel = CUDA_KERNEL.format(lines=lines, bound=bound, type=kind)
        return [
            ("write", {"path": "model_new.py", "text": module}),
            ("write", {"path": "kernels/f.cu", "text": kernel}),
            (check, {}),
        ]

    def _lines(self, careful: bool) -> list[str]:
        """The chain in C, with the mistakes of the day."""
        wrong = self.errors.wrong_line
        lines = [op.wrong if self._errs(wrong, careful) else op.c for op in self.chain]
        if self._errs(self.errors.missing_line, careful):
            lines.pop(self.rng.randrange(len(lines)))
        if lines and self._errs(self.errors.syntax, careful):
            lines[0] = lines[0].rstrip(";")
        return lines

    def _errs(self, rate: float, careful: bool) -> bool:
        return not careful and self.rng.random() < rate

    def _pick(self, choices: Choices) -> str:
        texts, shares = zip(*choices, strict=True)
        return str(self.rng.choices(texts, shares)[0])


def teacher_of(task: Task, seed: int) -> Teacher:
    """A teacher who knows what a gym task computes."""
    return Teacher(task.device, chain_of(task), seed)


def initial_files(task: Task) -> dict[str, str]:
    """What lies in the work folder. On a GPU the launch is worth choosing, so the policy writes
    model_new.py itself; on a CPU there is nothing in it to choose."""
    return {} if task.device == Device.CUDA else {"model_new.py": CPU_MODULE}
