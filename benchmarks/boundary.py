"""Time what an exported package adds to one call: the check of the call and its dispatch.

    python benchmarks/boundary.py [--calls 20] [--rounds 2000]

The arm "operator" calls only the operator that a compiled graph calls; "ModelNew" is the package's
module called directly. The kernel is a C++ function that adds eight numbers, so its own time is
small. Arms alternate, and the clock counts the processor time of the thread. Printed are the
smallest and the median time of all rounds, each with its difference from the kernel's module alone.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = """
import torch
from torch import nn

class Add(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x, y):
        return x + y * self.weight
"""
KERNEL = """
import torch
from torch import nn
from cuagent.kernels import load

kernels = load("kernels/add.cpp")

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x, y):
        out = torch.empty_like(x)
        kernels.add(out, x, y, self.weight)
        return out
"""
CPP = """
extern "C" void add(float* out, const float* x, const float* y, const float* w) {
  for (int i = 0; i < 8; ++i) out[i] = x[i] + y[i] * w[i];
}
"""
PAIR = '{"kind": "list", "items": [{"kind": "tensor"}, {"kind": "tensor"}]}'
INIT = '{"kind": "list", "items": [{"kind": "list", "items": [{"kind": "const", "value": 8}]}, '
INIT += '{"kind": "dict", "keys": [], "items": []}]}'
PLACES: dict[str, Any] = {"positional": [{"tensor": 0}], "named": {"y": {"tensor": 1}}}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        arms = _arms(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(options.rounds):
            for name, call in arms.items():
                times[name].append(_seconds(call, options.calls))
    print(f"{'microseconds of a call':36}{'least':>6}{'added':>7}{'median':>9}{'added':>7}")
    raw = times["kernel's module"]
    for name, each in times.items():
        cells = [(pick(each) * 1e6, pick(raw) * 1e6) for pick in (min, statistics.median)]
        (least, raw_least), (median, raw_median) = cells
        text = f"{name:36}{least:6.2f}{least - raw_least:+7.2f}"
        print(f"{text}{median:9.2f}{median - raw_median:+7.2f}")


def _seconds(call: Callable[[], Any], calls: int) -> float:
    begin = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - begin) / calls


def _arms(folder: Path) -> dict[str, Callable[[], Any]]:
    import torch

    from cuagent.package.guarded import Captured

    sys.path.insert(0, str(folder))
    (folder / "adds.py").write_text(SOURCE)
    made: Any = importlib.import_module("adds").Add
    x, y = torch.randn(1, 8), torch.randn(1, 8)
    plain, last = made(8).eval(), _domain(1)
    one = _package(folder, "one_fast", None, last).optimize_(made(8).eval())
    given = {"inputs": 2, **PLACES}
    more = tuple(map(_domain, range(2, 9)))
    captured = _package(folder, "many_fast", Captured("net", "Add", given, None, more), last)
    many = captured.optimize_(made(8).eval())
    x8, y8 = torch.randn(8, 8), torch.randn(8, 8)
    assert not one.why_original(x, y)
    assert not many.why_original(x8, y=y8)
    kernel = one.__dict__["_cuagent_replacement"].kernel
    new = importlib.import_module("one_fast.model_new").ModelNew(8).eval()
    assert not new.why_original(x, y)
    boundary = one.__dict__["_cuagent_replacement"].boundary
    call, state = boundary.call, list(one.parameters())
    return {
        "original module": lambda: plain(x, y),
        "kernel's module": lambda: kernel(x, y),
        "optimize_": lambda: one(x, y),
        "ModelNew": lambda: new(x, y),
        "operator, as in a compiled graph": lambda: call([x, y], state),
        "optimize_, names, first of 8 shapes": lambda: many(x, y=y),
        "optimize_, names, last of 8 shapes": lambda: many(x8, y=y8),
    }


def _domain(rows: int) -> Any:
    from cuagent.verify.domain import Domain, TensorForm

    form = TensorForm("float32", (rows, 8), (8, 1))
    return Domain("cpu", ("x", "y"), PAIR, (form, form), INIT)


def _package(folder: Path, name: str, captured: Any, domain: Any) -> Any:
    from cuagent.attempt import Attempt
    from cuagent.package.folder import write_files
    from cuagent.package.guarded import guarded_files
    from cuagent.task.task import Task

    source = SOURCE + ("\nclass Model(Add):\n    pass\n" if captured else "")
    task = Task(path=Path("adds.py"), entry="Model" if captured else "Add", source=source)
    attempt = Attempt((("kernels/add.cpp", CPP), ("model_new.py", KERNEL)))
    files = guarded_files(attempt, task, domain, "reference.py", captured)
    write_files(files, folder / name)
    (folder / name / "__init__.py").write_text("from .model_new import optimize_\n")
    return importlib.import_module(name)


if __name__ == "__main__":
    main()
