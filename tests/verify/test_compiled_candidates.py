"""Candidates that compile their forward with torch.compile, with own kernels inside."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import load_task
from cuagent.verify import Referee

pytestmark = pytest.mark.slow

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2) + 1
def get_inputs(): return [torch.randn(16, 24)]
def get_init_inputs(): return []
"""
KERNEL = """
extern "C" void doubled(float* y, const float* x, long n) {
  for (long i = 0; i < n - SKIPPED; ++i) y[i] = 2 * x[i];
}
"""
MODULE = """
import torch
from cuagent.kernels import load

doubled = load("kernels/doubled.cpp").operator("doubled")


@torch.compile(fullgraph=True, dynamic=False)
def compiled(x):
    y = torch.empty_like(x)
    doubled(y, x, x.numel())
    return torch.relu(y) + 1


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return compiled(x)
"""


@pytest.mark.parametrize(("skipped", "accepted"), [(0, True), (1, False)])
def test_compiled_forward_around_an_own_kernel_is_judged(
    tmp_path: Path, skipped: int, accepted: bool
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    kernel = KERNEL.replace("SKIPPED", str(skipped))
    attempt = Attempt((("kernels/doubled.cpp", kernel), ("model_new.py", MODULE)))
    task = load_task(tmp_path / "task.py")
    with Referee(task) as referee:
        await_imports(referee.fork_server.pid)
        verdict = referee.verify(attempt, build(attempt, task.device))
    assert verdict.accepted is accepted, verdict.detail


TUNED_TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1) * x.sum(0)
def get_inputs(): return [torch.randn(4096, 2048)]
def get_init_inputs(): return []
"""
TUNED_MODULE = """
import torch


@torch.compile(fullgraph=True, dynamic=False, mode="MODE")
def compiled(x):
    return torch.softmax(x, 1) * x.sum(0)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return compiled(x).clone()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compiled_forward_whose_kernels_are_tuned_is_judged_in_all_its_processes(
    tmp_path: Path, mode: str
) -> None:
    """Later processes read the graph that the first one compiled and tuned in its own folder."""
    (tmp_path / "task.py").write_text(TUNED_TASK)
    attempt = Attempt((("model_new.py", TUNED_MODULE.replace("MODE", mode)),))
    task = load_task(tmp_path / "task.py", device="cuda")
    with Referee(task) as referee:
        built = build(attempt, task.device)
        referee.compile_ahead(attempt, built)
        assert referee.processes.compiled.has_files(attempt)
        verdict = referee.verify(attempt, built)
    assert verdict.accepted, verdict.detail


def await_imports(pid: int) -> None:
    """Wait until the fork server has imported torch.compile, which its children then share."""
    file, seen = Path(f"/proc/{pid}/smaps_rollup"), -1
    while (now := resident_kb(file)) != seen:
        seen = now
        time.sleep(3)


def resident_kb(file: Path) -> int:
    lines = file.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss"))
