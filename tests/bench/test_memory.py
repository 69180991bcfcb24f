"""Problems share a GPU's memory: the size of a call, and the claim of a problem."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from make_tasks import write_task

from cuagent.bench.memory import (
    CALLS_HELD,
    CONTEXTS,
    LARGE_RESERVE,
    RUNS_HELD,
    USABLE,
    Size,
    size_of,
    sized,
)
from cuagent.bench.order import BenchSettings
from cuagent.bench.problems import Problem
from cuagent.bench.scheduler import orders_for
from cuagent.task import Device, load_task
from cuagent.task.plain import task_to_json
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

TOTAL = 140 << 30


def test_size_of_a_call_needs_no_memory(tmp_path: Path, fork_server: ForkServer) -> None:
    path = write_task(
        tmp_path / "task.py",
        "return self.a(x)",
        "torch.randn(1 << 20, 1 << 16)",
        init="self.a = nn.Linear(1 << 16, 1 << 10).half().float()",
    )
    floats = (1 << 36) + (1 << 26) + (1 << 10) + (1 << 30)
    assert size_of(load_task(path, device="cpu"), fork_server).call == 4 * floats


def test_size_on_a_gpu_includes_outputs_and_intermediate_results(tmp_path: Path) -> None:
    path = write_task(
        tmp_path / "task.py",
        "return F.relu(self.a(x))",
        "torch.randn(10, 1000)",
        init="self.a = nn.Linear(1000, 4000)",
    )
    task = replace(load_task(path, device="cpu"), device=Device.CUDA)
    code = (
        "import json, sys; from cuagent.bench.memory import bytes_of_call; "
        "from cuagent.task.plain import task_from_json; "
        "print(json.dumps(bytes_of_call(task_from_json(json.load(sys.stdin)))))"
    )
    given = json.dumps(task_to_json(task))
    found = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, check=True
    )
    # The result of the layer exists while that of relu is computed.
    assert json.loads(found.stdout) == {
        "call": 4 * (10_000 + 4_000_000 + 4_000 + 40_000),
        "between": 160_000,
        "inputs": 40_000,
        "outputs": 160_000,
        "precise": 320_000,
    }


def test_reference_that_reads_values_has_no_outputs_but_a_size(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = write_task(tmp_path / "task.py", "return x[: int(x.max())]", "torch.randn(1000)")
    assert size_of(load_task(path, device="cpu"), fork_server).call == 2 * 4000
    path = write_task(tmp_path / "broken.py", "return x", "torch.randn(1000)", init="1 / 0")
    assert size_of(load_task(path, device="cpu"), fork_server).call is None


def test_claim_follows_the_size() -> None:
    assert Size(1 << 20, TOTAL).claim == CONTEXTS + CALLS_HELD * (1 << 20)
    assert Size(17 << 30, TOTAL, 0, 17 << 30).claim < int(USABLE * TOTAL)
    assert Size(29 << 30, TOTAL, 0, 29 << 30).claim == int(USABLE * TOTAL)
    assert Size(2 << 30, TOTAL).claim < int(USABLE * TOTAL)
    assert Size(1 << 20, TOTAL, 1 << 30).claim == Size(1 << 20, TOTAL).claim + RUNS_HELD * (1 << 30)
    assert Size(17 << 30, TOTAL, 0, 17 << 30).takes_most
    assert not Size(None, TOTAL).takes_most
    assert Size(None, TOTAL).claim == int(TOTAL / 3)
    assert Size(29 << 30, TOTAL, 0, 29 << 30).share == 1
    assert Size(1 << 20, 0).share == 0


def test_claim_of_a_large_task_follows_its_memory_plan() -> None:
    gib = 1 << 30
    sums = Size(8 * gib, TOTAL, 0, 8 * gib, 0, 0)
    assert sums.is_large
    # The certification has two draws, one with a part left out, and copies.
    assert sums.claim == CONTEXTS + int(LARGE_RESERVE * 4 * 8 * gib)
    maps = Size(8 * gib, TOTAL, 0, 4 * gib, 4 * gib, 8 * gib)
    layer = Size(8 * gib, TOTAL, 0, 2 * gib, 2 * gib, 4 * gib)
    assert sums.claim < maps.claim < layer.claim  # outputs are compared, weights are held often
    assert maps.claim < Size(8 * gib, TOTAL, 4 * gib, 4 * gib, 4 * gib, 8 * gib).claim
    half = Size(8 * gib, TOTAL, 0, 4 * gib, 4 * gib, 16 * gib)
    assert maps.claim < half.claim


def test_size_of_an_order_is_found_without_a_run(tmp_path: Path, fork_server: ForkServer) -> None:
    path = write_task(tmp_path / "task.py", "return x * 2", "torch.randn(1000)")
    problems = [Problem(name, tmp_path / f"{name}.py", "tasks") for name in ("task", "missing")]
    found, missing = orders_for(problems, BenchSettings(), "a device", tmp_path)
    assert path == problems[0].path
    each = {"inputs": 4000, "outputs": 4000, "precise": 8000}
    assert sized(found, fork_server) == {"size": {"call": 8000, "total": 0, "between": 0} | each}
    assert sized(missing, fork_server) == {"size": None}
