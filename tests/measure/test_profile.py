"""Profiles of a reference and of attempts, and the reports on them."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from shares import slow_except

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.profile.child import _kernels
from cuagent.measure.profile.profile import (
    MAX_LINES,
    Cost,
    Profile,
    ProfileError,
    _short,
    costs_of,
)
from cuagent.measure.profile.session import ProfileSession, profile
from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.roofline.model import ABOVE, OperatorWork, Roofline, Work
from cuagent.task import Device, load_task
from cuagent.worker import ForkServer

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("profile")
    (made / "task.py").write_text(TASK)
    return made


@pytest.mark.slow
def test_reference_profile_rates_operators_against_ceilings(
    fork_server: ForkServer, folder: Path
) -> None:
    seen = profile(
        load_task(folder / "task.py", device="cpu"), fork_server=fork_server, cache=folder
    )
    by_name = {cost.name: cost for cost in seen.operators}
    product = by_name["aten::addmm"]
    assert product.flop_per_s == pytest.approx(2 * 1024 * 256 * 256 / product.seconds)
    assert by_name["aten::mul"].bytes_per_s
    assert seen.roofline.work.bytes == 4 * (2 * 1024 * 256 + 256 * 256 + 256)
    assert any("compulsory" in note for note in seen.notes())
    lines = seen.lines()
    assert len(lines) <= MAX_LINES
    assert any("aten::addmm" in line and "FLOP/s" in line for line in lines)
    narrow = [line for line in seen.lines(60) if "|" in line]
    assert narrow[0].split() == ["operator", "calls", "time", "share", "|"]
    assert all(line.count("·") + line.count("█") == 8 for line in narrow[1:])
    assert max(map(len, narrow)) <= 60
    phone = [line for line in seen.lines(40) if line.endswith("|")]
    assert len(phone) == len(narrow)
    assert max(map(len, phone)) <= 40
    assert all(re.search(r"s +\d+% \|$", line) for line in phone[1:])
    usual = [line for line in seen.lines(80) if "FLOP/s" in line and "|" in line]
    assert usual
    assert all(line.endswith("%") for line in usual)
    assert json.loads(json.dumps(seen.to_json()))["bound"] in ("memory", "compute")


@pytest.mark.slow
def test_attempt_is_profiled_in_the_sandbox_with_its_own_kernel(
    fork_server: ForkServer, folder: Path
) -> None:
    made = attempt(CPU_KERNEL, "cpp")
    task = load_task(folder / "task.py", device="cpu")
    with closing(
        ProfileSession(task, fork_server, with_candidate=True)
    ) as begun:  # before the build
        built = build(made, Device.CPU, cache=folder / "cache")
        begun.await_opened()
        seen = begun.finish(made, built, cache=folder)
    names = [cost.name for cost in seen.operators]
    assert "own kernel: act" in names
    assert "aten::mul" not in names
    (loop,) = seen.loops
    assert loop.vector_bytes >= 16
    assert any("byte vectors" in line for line in seen.lines())
    json.dumps(seen.to_json())


def test_unfinished_session_leaves_no_process_and_no_folder(
    fork_server: ForkServer, folder: Path
) -> None:
    living = set(fork_server.living)
    begun = ProfileSession(
        load_task(folder / "task.py", device="cpu"), fork_server, with_candidate=False
    )
    begun.await_opened()
    assert begun.alive
    begun.close()
    assert not begun.alive
    assert fork_server.living == living
    assert not begun.folder.exists()


def test_attempt_that_raises_is_one_line(fork_server: ForkServer, folder: Path) -> None:
    broken = Attempt((("model_new.py", CANDIDATE),))
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match="NameError: name 'kernels' is not defined"):
        profile(task, broken, fork_server=fork_server, cache=folder)


def test_build_failure_is_the_compilers_line(fork_server: ForkServer, folder: Path) -> None:
    broken = attempt(CPU_KERNEL.replace("v > 0 ?", "v > 0 !"), "cpp")
    built = build(broken, Device.CPU, cache=folder / "cache")
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match=r"^kernels/act.cpp:3: "):
        profile(task, broken, built, fork_server=fork_server, cache=folder)


@pytest.mark.slow
@pytest.mark.always
def test_attempt_that_exits_is_an_error(fork_server: ForkServer, folder: Path) -> None:
    gone = Attempt((("model_new.py", "import os\nos._exit(0)"),))
    task = load_task(folder / "task.py", device="cpu")
    with pytest.raises(ProfileError, match="without a profile"):
        profile(task, gone, fork_server=fork_server, cache=folder)


@pytest.mark.slow
@pytest.mark.always
def test_forged_profile_is_an_error(fork_server: ForkServer, folder: Path) -> None:
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
        profile(task, forger, fork_server=fork_server, cache=folder)


def test_delegating_operator_is_rated_by_its_total_time() -> None:
    row = {"name": "aten::logsumexp", "calls": 1, "seconds": 1e-5, "total_seconds": 1e-2}
    work = {"logsumexp": OperatorWork(calls=1, bytes=10**6, flops=0)}
    (cost,) = costs_of([row], work, on_cuda=False)
    assert cost.bytes_per_s == pytest.approx(1e8)
    assert cost.seconds == 1e-5


def test_notes_explain_imprecise_figures() -> None:
    ceilings = Ceilings("a device", copy=1e9, fp32=1e9, tf32=0.0, bf16=0.0)
    roof = Roofline(Work(8, 8, 0, 2), ceilings, "fp32")
    costs = (Cost("aten::mul", 60, 6e-4, 0.6), Cost("aten::tanh", 30, 4e-4, 0.4))
    seen = Profile("task", 1e-3, costs, (), roof, roof.work, None, 1.0, 2, None)
    assert not any("rough" in note or "busy:" in note for note in seen.notes())
    notes = "; ".join(replace(seen, seconds=2e-4, others=0.7).notes())
    assert "the operators add up to 1 ms, 5.0x the call" in notes
    assert "machine busy: 70% used by other processes" in notes
    assert ABOVE not in seen.notes()
    assert ABOVE in replace(seen, seconds=0.95 * roof.floor).notes()


def test_the_report_for_an_agent_has_whole_names_of_kernels() -> None:
    ceilings = Ceilings("a device", copy=1e9, fp32=1e9, tf32=0.0, bf16=0.0)
    roof = Roofline(Work(8, 8, 0, 2), ceilings, "fp32")
    name = "own kernel: batch_norm_tanh_sigmoid_mul_kernel2"
    costs = (Cost(name, 1, 6e-4, 0.6, 1e8, 1e8), Cost("aten::tanh", 30, 4e-4, 0.4))
    seen = Profile("task", 1e-3, costs, (), roof, roof.work, None, 1.0, 2, None)
    (row,) = [line for line in seen.lines() if line.startswith(name)]
    assert row.endswith("100 MB/s 10%, 100 MFLOP/s 10%")
    assert any("…" in line for line in seen.lines(80))


def test_missing_counters_are_reported_on_a_gpu_only() -> None:
    ceilings = Ceilings("a device", copy=1e9, fp32=1e9, tf32=0.0, bf16=0.0)
    roof = Roofline(Work(8, 8, 0, 2), ceilings, "fp32")
    on_cpu = Profile("task", 1e-3, (), (), roof, roof.work, None, 1.0, 2, None)
    on_cuda = replace(on_cpu, busy=1e-3)
    assert not any("hardware counters" in line for line in on_cpu.lines())
    assert any("no hardware counters: not asked for" in line for line in on_cuda.lines())
    refused = replace(on_cuda, missing="ncu is not installed").lines()
    assert [line for line in refused if "hardware counters" in line] == [
        "no hardware counters: ncu is not installed"
    ]


def test_short_names_keep_the_kernel_name() -> None:
    long = "void <unnamed>::softmax_warp_forward<float, float, float, 10, false, 0>(float*)"
    assert _short(long, 40) == "softmax_warp_forward"
    assert _short("void at::native::(anonymous namespace)::f<int>(int)", 40) == "f<int>(int)"


@dataclass
class Range:
    start: float
    end: float


@dataclass
class Event:
    name: str
    time_range: Range


def test_gaps_are_times_without_any_kernel_on_all_streams() -> None:
    # two calls of the model, in microseconds; b overlaps the end of a, c follows a gap
    one = [Event("a", Range(0, 10)), Event("b", Range(8, 12)), Event("c", Range(20, 21))]
    two = [Event(e.name, Range(e.time_range.start + 30, e.time_range.end + 30)) for e in one]
    rows = {row["name"]: row for row in _kernels([*two, *one], 2)}
    assert rows["a"]["gap"] == pytest.approx(9e-6 / 2)
    assert rows["b"]["gap"] == 0
    assert rows["c"]["gap"] == pytest.approx(8e-6)
    assert rows["b"]["seconds"] == pytest.approx(4e-6)
    assert _kernels([], 2) == []


@pytest.mark.gpu
def test_cuda_profile_shows_kernels_gaps_and_registers(
    fork_server: ForkServer, folder: Path
) -> None:
    task = load_task(folder / "task.py", device="cuda")
    seen = profile(task, fork_server=fork_server, cache=folder)
    assert sum(kernel.calls for kernel in seen.kernels) >= 3
    assert seen.busy is not None
    assert 0 < seen.busy < seen.seconds
    made = attempt(CUDA_KERNEL, "cu")
    built = build(made, Device.CUDA, cache=folder / "cache")
    seen = profile(task, made, built, fork_server=fork_server, cache=folder)
    assert any("act_kernel" in kernel.name for kernel in seen.kernels)
    assert any(kernel.gap > 0 for kernel in seen.kernels)
    assert any(resource.registers > 0 for resource in seen.resources)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs Nsight Compute")
def test_counters_of_an_attempt_are_read_in_its_sandbox(
    fork_server: ForkServer, folder: Path
) -> None:
    task = load_task(folder / "task.py", device="cuda")
    made = attempt(CUDA_KERNEL, "cu")
    built = build(made, Device.CUDA, cache=folder / "cache")
    seen = profile(task, made, built, fork_server=fork_server, cache=folder, counters=True)
    assert not seen.missing
    (own,) = [launch for launch in seen.counters if "act_kernel" in launch.kernel]
    assert own.values["registers"] > 0
    assert any("over DRAM" in note for note in seen.notes())
    assert len(seen.lines()) <= MAX_LINES


HOSTILE_RESULTS = {
    "pipe": "os.mkfifo(path)",
    "link": "os.symlink('{other}', path)",
    "deep": "open(path, 'w').write('[' * 200_000)",
    "number": "open(path, 'w').write('1')",
}


@pytest.mark.parametrize("name", slow_except(HOSTILE_RESULTS, "pipe", "link"))
def test_result_of_a_profile_is_a_plain_file(
    fork_server: ForkServer, folder: Path, tmp_path: Path, name: str
) -> None:
    """The attempt's process writes it, so it must neither hang the judge nor name a file."""
    other = tmp_path / "other.json"
    other.write_text('{"error": "a secret"}')
    module = f"""
import os
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, *_):
        super().__init__()
        path = os.path.join(os.environ["HOME"], "profile.json")
        {HOSTILE_RESULTS[name].format(other=other)}
        os._exit(0)
"""
    made = Attempt((("model_new.py", module),))
    task = load_task(folder / "task.py", device="cpu")
    built = build(made, Device.CPU, cache=folder / "cache")
    with pytest.raises(ProfileError) as raised:
        profile(task, made, built, fork_server=fork_server, cache=folder)
    assert "a secret" not in str(raised.value)
