"""Time the expert's first candidate of some modules, next to eager and torch.compile.

    python benchmarks/first_candidates.py [--device cuda|cpu] [CASE ...]

Everything runs in one process under torch's default settings, with the same inputs in all calls. So
the figures are those of a simple script, without a verdict. The program prints a line for each
case: median seconds of eager, torch.compile and the candidate, and the candidate's error over
eager's.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task

TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.to(torch.{dtype})
    def forward(self, {arguments}):
        return {body}
def get_inputs(): return [torch.randn(s, dtype=torch.{dtype}) for s in {shapes}]
def get_init_inputs(): return []
"""
CASES: dict[str, tuple[str, str, str, str]] = {
    "depthwise 3x3": ("nn.Conv2d(64, 64, 3, groups=64)", "self.c(x)", "16,64,512,512", "float32"),
    "depthwise 7x7": (
        "nn.Conv2d(192, 192, 7, padding=3, groups=192)", "self.c(x)", "32,192,56,56", "float32",
    ),
    "depthwise bf16": (
        "nn.Conv2d(240, 240, 3, padding=1, groups=240)", "F.hardswish(self.c(x))",
        "64,240,56,56", "bfloat16",
    ),
    "depthwise 1D causal": (
        "nn.Conv1d(2048, 2048, 4, padding=3, groups=2048)", "F.silu(self.c(x)[..., :-3])",
        "8,2048,4096", "float32",
    ),
    "pointwise 512": ("nn.Conv2d(64, 128, 1)", "self.c(x)", "8,64,512,512", "float32"),
    "pointwise silu": ("nn.Conv2d(256, 64, 1)", "F.silu(self.c(x))", "64,256,56,56", "float32"),
    "transposed 2D": (
        "nn.ConvTranspose2d(64, 64, 4, 2, 1)", "torch.tanh(self.c(x) - 0.5)",
        "32,64,128,128", "float32",
    ),
    "triangle of a product": (
        "nn.Identity()", "torch.triu(x[0] @ x[1])", "2,4096,4096", "float32",
    ),
    "RMSNorm bf16": ("nn.RMSNorm(4096)", "self.c(x)", "4,2048,4096", "bfloat16"),
    "SwiGLU bf16": (
        "nn.Identity()", "F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]", "8192,22016", "bfloat16",
    ),
}  # fmt: skip
"""Modules by name: constructor of `self.c`, expression of forward, input shape, dtype."""
RUN_S = 0.3
"""Least duration in seconds of each measurement."""


def main() -> None:
    """Time each case and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; seconds, median; error over eager's, against fp64")
    print(f"{'case':24} {'eager':>10} {'compile':>10} {'candidate':>10} {'error':>7}")
    for case in given.cases:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            print(f"{case:24} {_line(case, given.device, Path(folder))}", flush=True)


def _line(case: str, device: str, folder: Path) -> str:
    init, body, shape, dtype = CASES[case]
    text = TASK.format(
        init=f"self.c = {init}", body=body, arguments="x", shapes=f"[({shape},)]", dtype=dtype
    )
    path = folder / "task.py"
    path.write_text(text)
    module = _imported(path)
    torch.manual_seed(0)
    model = module.Model().eval().to(device)
    (x,) = (t.to(device) for t in module.get_inputs())
    candidate = make_candidate(open_subject(load_task(f"{path}:Model", device=device)), Options())
    times = [_seconds(model, x), _seconds(torch.compile(model, dynamic=False), x)]
    if candidate is None:
        return " ".join(f"{t:10.3e}" for t in times) + "  no candidate"
    for name, content in candidate.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    new = _imported(folder / "model_new.py").ModelNew().eval().to(device)
    new.load_state_dict(model.state_dict())
    exact = module.Model().eval().double().to(device)
    exact.load_state_dict(model.state_dict())
    part = x if "x[1]" in body else x[:1]
    right = exact(part.double())
    own, eager = (_error(m(x), right) for m in (new, model))
    times.append(_seconds(new, x))
    return " ".join(f"{t:10.3e}" for t in times) + f" {own / max(eager, 1e-30):7.2f}"


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seconds(call: Callable[[Any], Any], x: torch.Tensor) -> float:
    timer = Timer("call(x)", globals={"call": call, "x": x})
    return float(timer.blocked_autorange(min_run_time=RUN_S).median)


def _error(value: torch.Tensor, right: torch.Tensor) -> float:
    """Return the relative error |x - right| / |right|, where x are the first rows of `value`, as
    many as `right` has."""
    return float((value[: len(right)].double() - right).norm() / right.norm())


if __name__ == "__main__":
    main()
