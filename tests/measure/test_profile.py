"""A profile names the operators and own kernels that take the time, and says what bounds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.profile import MOST_LINES, ProfileError, profile
from cuagent.task import Device, load_task
from cuagent.worker import Nursery

TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
    def forward(self, x):
        return torch.relu(self.linear(x) * 2 + 1)
def get_inputs():
    return [torch.randn(1024, 256)]
"""
CANDIDATE = TASK.replace("class Model", "class ModelNew").replace(
    "return torch.relu(self.linear(x) * 2 + 1)",
    "h = self.linear(x); kernels.act(h, h.numel()); return h",
)
CPU_KERNEL = """
extern "C" void act(float* x, long n) {
  for (long i = 0; i < n; ++i) { float v = x[i] * 2 + 1; x[i] = v > 0 ? v : 0; }
}
"""
CUDA_KERNEL = """
__global__ void act_kernel(float* x, long n) {
  long i = blockIdx.x * 256L + threadIdx.x;
  if (i < n) x[i] = fmaxf(x[i] * 2 + 1, 0);
}
extern "C" void act(float* x, long n, cudaStream_t s) {
  act_kernel<<<(n + 255) / 256, 256, 0, s>>>(x, n);
}
"""


def attempt(kernel: str, suffix: str) -> Attempt:
    load = f'from cuagent.kernels import load\nkernels = load("kernels/act.{suffix}")\n'
    return Attempt(((f"kernels/act.{suffix}", kernel), ("model_new.py", load + CANDIDATE)))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as warm:
        yield warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("profile")
    (made / "task.py").write_text(TASK)
    return made


def test_the_reference_is_shown_by_operator_against_the_ceilings(
    nursery: Nursery, folder: Path
) -> None:
    seen = profile(load_task(folder / "task.py", device="cpu"), nursery=nursery, cache=folder)
    by_name = {cost.name: cost for cost in seen.operators}
    product = by_name["aten::addmm"]
    assert product.flop_per_s == pytest.approx(2 * 1024 * 256 * 256 / product.seconds)
    assert by_name["aten::mul"].bytes_per_s
    assert seen.roofline.work.bytes == 4 * (2 * 1024 * 256 + 256 * 256 + 256)
    assert any("compulsory" in note for note in seen.notes())
    lines = seen.lines()
    assert len(lines) <= MOST_LINES
    assert any("aten::addmm" in line and "FLOP/s" in line for line in lines)
    assert json.loads(json.dumps(seen.to_json()))["bound"] in ("memory", "compute")


def test_an_attempt_is_profiled_in_the_sandbox_and_shows_its_own_kernel(
    nursery: Nursery, folder: Path
) -> None:
    made = attempt(CPU_KERNEL, "cpp")
    built = build(made, Device.CPU, cache=folder / "cache")
    task = load_task(folder / "task.py", device="cpu")
    seen = profile(task, made, built, nursery=nursery, cache=folder)
    names = [cost.name for cost in seen.operators]
    assert "own kernel: act" in names
    assert "aten::mul" not in names


def test_an_attempt_that_raises_is_one_line(nursery: Nursery, folder: Path) -> None:
    broken = Attempt((("model_new.py", CANDIDATE),))
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match="NameError: name 'kernels' is not defined"):
        profile(task, broken, nursery=nursery, cache=folder)


def test_an_attempt_that_leaves_is_an_error_and_not_a_hang(nursery: Nursery, folder: Path) -> None:
    gone = Attempt((("model_new.py", "import os\nos._exit(0)"),))
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match="without a profile"):
        profile(task, gone, nursery=nursery, cache=folder)


def test_a_forged_profile_is_an_error(nursery: Nursery, folder: Path) -> None:
    forger = Attempt(
        (
            (
                "model_new.py",
                "import os\nopen('profile.json', 'w').write('{\"seconds\": []}')\nos._exit(0)",
            ),
        )
    )
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match="cannot be read"):
        profile(task, forger, nursery=nursery, cache=folder)


@pytest.mark.gpu
def test_kernels_launch_gaps_and_registers_are_shown_on_cuda(
    nursery: Nursery, folder: Path
) -> None:
    task = load_task(folder / "task.py", device="cuda")
    seen = profile(task, nursery=nursery, cache=folder)
    assert sum(kernel.calls for kernel in seen.kernels) >= 3
    assert seen.busy is not None
    assert 0 < seen.busy < seen.seconds
    made = attempt(CUDA_KERNEL, "cu")
    built = build(made, Device.CUDA, cache=folder / "cache")
    seen = profile(task, made, built, nursery=nursery, cache=folder)
    assert any("act_kernel" in kernel.name for kernel in seen.kernels)
    assert any(resource.registers > 0 for resource in seen.resources)
