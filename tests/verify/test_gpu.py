"""The same verdicts on a CUDA device: shared memory by IPC handle, faults, precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Precision, Task, load_task
from cuagent.verify import Reason, Referee, Verdict
from cuagent.verify.sanitize import TOOLS, Report, sanitize

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


def test_an_honest_kernel_is_accepted(referee: Referee) -> None:
    verdict = judge(referee)
    assert verdict.reason is Reason.ACCEPTED, (verdict.detail, verdict.output)
    assert verdict.precision is Precision.MATCH


def test_tf32_products_are_less_precise_than_an_fp32_task_allows(referee: Referee) -> None:
    switch = "torch.backends.cuda.matmul.__setattr__('allow_tf32', True) or x @ self.weight"
    assert judge(referee, product=switch).reason is Reason.LESS_PRECISE


def test_a_kernel_that_stops_short_leaves_poison(referee: Referee) -> None:
    assert judge(referee, count="y.numel() - 1").reason is Reason.NOT_WRITTEN


def test_a_kernel_that_runs_past_its_buffer_is_noticed(referee: Referee) -> None:
    broken = KERNEL.replace("if (i < n) out[i]", "if (i <= n) out[i]").replace("+ 255", "+ 256")
    assert judge(referee, kernel=broken).reason is Reason.WROTE_OUTSIDE


def test_a_write_to_an_input_is_noticed(referee: Referee) -> None:
    assert judge(referee, more="x[0] = 0").reason is Reason.CHANGED_INPUT


def test_work_left_on_another_stream_counts_for_nothing(referee: Referee) -> None:
    late = """
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(400_000_000)
            late = torch.zeros_like(out)
            late.copy_(out)
        out = late"""
    assert not judge(referee, more=late).accepted


def test_after_a_fault_and_an_endless_kernel_the_next_attempt_is_judged(referee: Referee) -> None:
    fault = KERNEL.replace("out[i] = in[i] > 0", "out[i + (1L << 40)] = in[i] > 0")
    assert judge(referee, kernel=fault).reason in (Reason.RAISED, Reason.CRASHED)
    endless = KERNEL.replace("if (i < n)", "while (clock64() != 1) {} if (i < n)")
    referee.call_s, before = 1.0, referee.call_s
    assert judge(referee, kernel=endless).reason is Reason.TIMED_OUT
    referee.call_s = before
    assert judge(referee).reason is Reason.ACCEPTED


def test_the_sanitizer_finds_what_no_output_shows(referee: Referee) -> None:
    found = sanitized(referee, KERNEL)
    assert [report.tool for report in found] == list(TOOLS), found
    assert all(report.clean for report in found), found
    beyond = KERNEL.replace("= in[i] > 0 ? in[i] : 0", "= in[i] > 0 ? in[i] : 0 * in[n]")
    (report,) = sanitized(referee, beyond)
    assert not report.clean
    assert "Invalid __global__ read" in report.text


def sanitized(referee: Referee, kernel: str) -> tuple[Report, ...]:
    text = CANDIDATE.format(product="x @ self.weight", count="y.numel()", more="")
    attempt = Attempt((("kernels/relu.cu", kernel), ("model_new.py", text)))
    reports = sanitize(referee, attempt, build(attempt, referee.task.device))
    if not reports or not reports[0].ran:
        pytest.skip(f"compute-sanitizer does not run here: {reports}")
    return reports


def test_verdicts_leave_no_gpu_memory(referee: Referee) -> None:
    import torch

    judge(referee)
    before = torch.cuda.mem_get_info()[0]
    for _ in range(5):
        judge(referee)
    assert abs(torch.cuda.mem_get_info()[0] - before) < 64 << 20


def test_all_arms_run_on_shared_buffers(task: Task, referee: Referee) -> None:
    batch = referee.batch(4)
    with referee.reference("eager") as session:
        block = session.block(batch.inputs, batch.outputs, batch.slots, deadline_s=60)
        assert sum(block.claimed_s) <= block.wall_s
        assert referee.check(batch).passed
    referee.discard(batch)
