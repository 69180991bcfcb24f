"""Tests of verdicts on a CUDA device: shared memory by IPC handle, faults, precision."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Precision, Task, load_task
from cuagent.verify import Reason, Referee, Verdict
from cuagent.verify.compute_sanitizer import Outcome, Report, sanitizer
from cuagent.verify.sanitize import BUDGET_S, gated, sanitize

pytestmark = pytest.mark.gpu

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(512, 256))

    def forward(self, x):
        return torch.relu(x @ self.weight)


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return []
"""

CANDIDATE = """
import torch
from cuagent.kernels import load

relu = load("kernels/relu.cu").relu


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(512, 256))

    def forward(self, x):
        y = {product}
        out = torch.empty_like(y)
        relu(out, y, {count})
        {more}
        return out
"""

KERNEL = """
__global__ void relu_kernel(float* out, const float* in, long n) {
  long i = blockIdx.x * 256L + threadIdx.x;
  if (i < n) out[i] = in[i] > 0 ? in[i] : 0;
}
extern "C" void relu(float* out, const float* in, long n, cudaStream_t stream) {
  relu_kernel<<<(n + 255) / 256, 256, 0, stream>>>(out, in, n);
}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path: Path = tmp_path_factory.mktemp("gpu") / "matmul_relu.py"
    path.write_text(REFERENCE)
    return load_task(str(path), device="cuda")


@pytest.fixture(scope="module")
def referee(task: Task) -> Iterator[Referee]:
    with Referee(task, call_s=10.0) as opened:
        yield opened


def judge(
    referee: Referee,
    product: str = "x @ self.weight",
    count: str = "y.numel()",
    more: str = "",
    kernel: str = KERNEL,
) -> Verdict:
    text = CANDIDATE.format(product=product, count=count, more=more)
    attempt = Attempt((("kernels/relu.cu", kernel), ("model_new.py", text)))
    return referee.verify(attempt, build(attempt, referee.task.device))


def test_honest_kernel_is_accepted(referee: Referee) -> None:
    verdict = judge(referee)
    assert verdict.reason is Reason.ACCEPTED, (verdict.detail, verdict.output)
    assert verdict.precision is Precision.MATCH


def test_replayed_launches_are_accepted(referee: Referee) -> None:
    text = CANDIDATE.format(product="x @ self.weight", count="y.numel()", more="")
    text = text.replace("import load", "import load, replay").replace(
        "def forward(self, x):",
        "def forward(self, x):\n        return replay(self, ModelNew.compute, (x,))\n\n"
        "    def compute(self, x):",
    )
    attempt = Attempt((("kernels/relu.cu", KERNEL), ("model_new.py", text)))
    verdict = referee.verify(attempt, build(attempt, referee.task.device))
    assert verdict.reason is Reason.ACCEPTED, (verdict.detail, verdict.output)


def test_tf32_products_are_rejected_as_less_precise(referee: Referee) -> None:
    switch = "torch.backends.cuda.matmul.__setattr__('allow_tf32', True) or x @ self.weight"
    assert judge(referee, product=switch).reason is Reason.LESS_PRECISE


def test_kernel_that_stops_short_is_not_written(referee: Referee) -> None:
    assert judge(referee, count="y.numel() - 1").reason is Reason.NOT_WRITTEN


def test_kernel_that_writes_past_its_buffer_is_rejected(referee: Referee) -> None:
    broken = KERNEL.replace("if (i < n) out[i]", "if (i <= n) out[i]").replace("+ 255", "+ 256")
    assert judge(referee, kernel=broken).reason is Reason.WROTE_OUTSIDE


def test_write_to_an_input_is_rejected(referee: Referee) -> None:
    assert judge(referee, more="x[0] = 0").reason is Reason.CHANGED_INPUT


def test_unsynchronised_work_on_another_stream_is_rejected(referee: Referee) -> None:
    late = """
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(400_000_000)
            late = torch.zeros_like(out)
            late.copy_(out)
        out = late"""
    assert not judge(referee, more=late).accepted


def test_next_attempt_is_accepted_after_a_fault_and_an_endless_kernel(referee: Referee) -> None:
    fault = KERNEL.replace("out[i] = in[i] > 0", "out[i + (1L << 40)] = in[i] > 0")
    assert judge(referee, kernel=fault).reason in (Reason.RAISED, Reason.CRASHED)
    endless = KERNEL.replace("if (i < n)", "while (clock64() != 1) {} if (i < n)")
    referee.call_s, before = 1.0, referee.call_s
    assert judge(referee, kernel=endless).reason is Reason.TIMED_OUT
    referee.call_s = before
    assert judge(referee).reason is Reason.ACCEPTED


def test_sanitizer_rejects_a_fault_that_no_output_shows(referee: Referee) -> None:
    if sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed")
    found = sanitized(referee, KERNEL)
    assert [(r.tool, r.outcome) for r in found] == [
        ("memcheck", Outcome.CLEAN),
        ("racecheck", Outcome.CLEAN),
    ], found
    # Past `out`, the last allocation; another one may follow `in`.
    look = "= in[i] > 0 ? in[i] : out[n] == 1e30f ? 1 : 0"
    beyond = KERNEL.replace("= in[i] > 0 ? in[i] : 0", look)
    report = next(r for r in sanitized(referee, beyond) if r.tool == "memcheck")
    assert report.outcome is Outcome.FAULTY, report
    assert "Invalid __global__ read" in report.text
    attempt = attempt_of(beyond)
    built = build(attempt, referee.task.device)
    verdict = gated(referee, attempt, built, referee.verify(attempt, built))
    assert verdict.reason is Reason.MEMORY_FAULT
    assert not verdict.accepted


def attempt_of(kernel: str) -> Attempt:
    text = CANDIDATE.format(product="x @ self.weight", count="y.numel()", more="")
    return Attempt((("kernels/relu.cu", kernel), ("model_new.py", text)))


def sanitized(referee: Referee, kernel: str) -> tuple[Report, ...]:
    attempt = attempt_of(kernel)
    check = sanitize(referee, attempt, build(attempt, referee.task.device))
    assert check.kernels
    assert check.seconds <= BUDGET_S + 1
    assert all(report.reached for report in check.reports if report.outcome is Outcome.CLEAN)
    return check.reports


def test_verdicts_leave_no_gpu_memory(referee: Referee) -> None:
    def lost() -> int:
        before = settled_memory()
        for _ in range(5):
            judge(referee)
        return before - settled_memory()

    judge(referee)
    # Memory that we leave would show each time, that of others only while they start.
    assert any(lost() < 64 << 20 for _ in range(10))


def settled_memory() -> int:
    """Return the free bytes of the device when they have not changed for a second, or after half a
    minute: other processes may use the device."""
    import torch

    samples = [torch.cuda.mem_get_info()[0]]
    while len(samples) < 60 and samples[-3:] != [samples[-1]] * 3:
        time.sleep(0.5)
        samples.append(torch.cuda.mem_get_info()[0])
    return samples[-1]


def test_referee_releases_memory_for_a_large_task(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    with Referee(task, call_s=10.0) as opened:
        assert judge(opened).accepted
        monkeypatch.setattr(Referee, "large", True)
        opened.make_room()
        # Parts of blocks that tensors of other referees share cannot be released.
        shared = torch.cuda.memory_stats()["inactive_split_bytes.all.current"]
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - shared
        assert cached < 4 << 20


def test_candidate_that_fills_gpu_memory_is_at_fault(referee: Referee) -> None:
    """The next attempt is judged normally: neither the oracle nor the referee ran out of memory."""
    found = judge(referee, more="self.kept = torch.zeros(1 << 42, device='cuda')")
    assert found.reason is Reason.RAISED
    assert "out of memory" in found.detail
    hoard = KERNEL.replace(
        "relu_kernel<<<",
        "static void* kept; size_t free, all; cudaMemGetInfo(&free, &all);\n"
        "  if (!kept) cudaMalloc(&kept, free - (64L << 20));\n  relu_kernel<<<",
    )
    found = judge(referee, kernel=hoard)
    assert found.reason is Reason.CRASHED
    assert "of device memory, all that is free" in found.detail
    assert judge(referee).reason is Reason.ACCEPTED


def test_memory_is_shared_from_a_new_thread(referee: Referee) -> None:
    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(referee.batches.create, 2).result()
    assert all(tensor.is_cuda for slot in (0, 1) for tensor in batch.inputs.tensors(slot))
    referee.batches.discard(batch)


def test_all_arms_run_on_shared_buffers(task: Task, referee: Referee) -> None:
    batch = referee.batches.create(4)
    with referee.processes.reference("eager") as session:
        block = session.block(batch.inputs, batch.outputs, batch.slots, deadline_s=60)
        assert sum(block.claimed_s) <= block.wall_s
        assert all(referee.batches.check(batch, slot).passed for slot in range(4))
    referee.batches.discard(batch)
