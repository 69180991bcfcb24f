"""Write demonstrations for the gym's tasks: mediocre kernels with mistakes, chosen without timing.

The base policy imitates these demonstrations. The teacher chooses loop, number type and launch at
random, mostly slow ones, and makes mistakes at known rates, so the policy can still improve by
learning from verdicts. The teacher's episodes use the agent's tools and are judged. `first_turn`
creates a first turn without judging, since its text contains no verdict.
Not covered: optimization, which is the task of `cuagent.expert`.
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
from cuagent.training.demo.gym import Chain, chain_of

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
"""Alternative texts, each with the probability that the teacher chooses it."""
LOOPS: Choices = ((CPU_ROWS, 0.4), (CPU_ELEMENTS, 0.6))
"""Loop forms with their probabilities: over rows, or over outputs (which computes each row four
times)."""
TYPES: Choices = (("float", 0.35), ("double", 0.15), ("volatile float", 0.5))
PRAGMAS: Choices = (
    ("", 0.2),
    ("#pragma omp parallel for\n", 0.4),
    ("#pragma omp parallel for schedule(dynamic)\n", 0.4),
)
GRIDS: Choices = (("1", 0.5), ("8", 0.3), ("(n + 255) // 256", 0.2))
"""CUDA grid sizes with their probabilities, slow to fast: one block, eight blocks, or enough for
one thread per row. All are correct."""


@dataclass(frozen=True)
class ErrorRates:
    """Probability of each kind of the teacher's mistakes."""

    wrong_line: float = 0.06
    """Probability that one operator is written as its wrong form."""
    missing_line: float = 0.1
    wrong_bound: float = 0.1
    syntax: float = 0.08
    wrong_tool: float = 0.05
    gives_up: float = 0.3
    """Probability that the teacher submits a rejected kernel, instead of correcting it."""


class Teacher:
    """A `cuagent.models.model.Model` that writes a kernel, verifies it, may correct it, and submits
    it."""

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
        """Return the opening messages, followed by the teacher's first message."""
        return [*opening, self.query(opening, (), lambda text, kind: None).message]

    def attempt(self, initial_files: Mapping[str, str]) -> Attempt:
        """Return an attempt that the teacher writes over `initial_files`, without an agent's
        run."""
        written = {
            a["path"]: a["text"] for name, a in self._write(careful=False) if name == "write"
        }
        return Attempt(tuple(sorted({**initial_files, **written}.items())))

    def _write(self, careful: bool) -> list[tuple[str, dict[str, str]]]:
        """Return (tool, arguments) of the calls that write the files and verify them. `careful`:
        without mistakes."""
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
        """Return the chain as lines of C, with random mistakes unless `careful`."""
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
    """Return the teacher for a gym task; `seed` determines its choices and mistakes."""
    return Teacher(task.device, chain_of(task), seed)


def initial_files(task: Task) -> dict[str, str]:
    """Return the files in the work folder at the start of an episode, by path.

    For a CPU task this is model_new.py. For a CUDA task there are none: the policy writes
    model_new.py itself, because the launch affects the speed.
    """
    return {} if task.device == Device.CUDA else {"model_new.py": CPU_MODULE}
