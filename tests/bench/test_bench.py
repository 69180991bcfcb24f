"""Run `cuagent bench` on real tasks, in real processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from make_tasks import write_task

from cuagent.bench.order import BenchSettings, Order, Rules
from cuagent.bench.record_form import FREE, KERNEL, RESULTS
from cuagent.bench.results import Record, latest, read_results

pytestmark = pytest.mark.slow

LIMITS = ("--model", "expert", "--device", "cpu", "--max-time", "10m")
KILLS = 6
"""Kills at random of the benchmark in the slow test."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cuagent", "bench", *map(str, arguments), *LIMITS]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=390, check=False
    )


def states(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return (status, kinds of certificates, family, passed) of each problem: what does not depend
    on timing."""
    return {r["problem"]: _state(r) for r in latest(read_results(folder))}


def _state(record: Record) -> tuple[Any, ...]:
    certification = record.get("certification") or {}
    kinds = [certificate["kind"] for certificate in certification.get("certificates", ())]
    passed = (record.get("strict") or {}).get("passed")
    # On a busy machine the best attempt may not be surely faster.
    timed = record["status"] in (*RESULTS, "no gain") and passed
    return "accepted" if timed else record["status"], kinds, certification.get("family"), passed


def test_each_problem_ends_in_a_result_or_a_reason_and_is_done_once(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    write_task(tasks / "chain.py", "return torch.tanh(x * 2 + 1) - x", "torch.randn(512, 256)")
    write_task(tasks / "random.py", "return x + torch.rand_like(x)")
    write_task(tasks / "wrong.py", "return x @ x")
    done = bench(tasks, "--out", out)
    assert done.returncode == 0, done.stderr
    found = states(out)
    assert found["chain"] == ("accepted", [], "elementwise", True)
    assert found["random"][:2] == ("not certifiable", ["random"])
    assert found["wrong"][0] == "failed"
    records = {r["problem"]: r for r in read_results(out)}
    assert "cannot be multiplied" in records["wrong"]["reason"]
    chain = records["chain"]
    assert chain["times"]["candidate"]["low_s"] <= chain["times"]["candidate"]["median_s"]
    assert {"eager", "compile", "candidate"} <= chain["times"].keys()
    if chain["status"] == KERNEL:
        assert chain["parts"]["kernel"] == chain["ratios"]["best_rung"]["value"]
        assert chain["roofline_share"] > 0
    assert chain["attempts"] >= 1
    assert (out / "report.html").is_file()

    again = bench(tasks, "--out", out)
    assert again.returncode == 0
    assert len(read_results(out)) == 3

    compared = subprocess.run(
        [sys.executable, "-m", "cuagent", "bench", "compare", out, out],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "no sure difference: 3" in compared.stdout


def test_under_kernels_only_a_candidate_that_calls_torch_is_refused(tmp_path: Path) -> None:
    from cuagent.attempt import Attempt
    from cuagent.judge import LocalJudge
    from cuagent.task import load_task

    path = write_task(tmp_path / "task.py", "return torch.tanh(x)", "torch.randn(64, 64)")
    task = load_task(path, device="cpu")
    text = (
        "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x)\n"
    )
    kernel = (
        "import torch\nfrom cuagent.kernels import load\nlib = load('kernels/t.cpp')\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        y = torch.empty_like(x)\n        lib.t(x, y, x.numel())\n        return y\n"
    )
    source = (
        "#include <cmath>\n#include <cstdint>\n"
        'extern "C" void t(const float* x, float* y, int64_t n) {\n'
        "  for (int64_t i = 0; i < n; ++i) y[i] = std::tanh(x[i]);\n}\n"
    )
    with LocalJudge(task, kernels_only=True) as judge:
        refused = judge.judge(Attempt((("model_new.py", text),)), None)
        accepted = judge.judge(Attempt((("kernels/t.cpp", source), ("model_new.py", kernel))), None)
    assert not refused.verdict.accepted
    assert "kernels-only: the torch operator aten::tanh" in refused.verdict.output
    assert accepted.verdict.accepted, accepted.verdict.detail


def test_a_killed_benchmark_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    """Not covered: a kill while the sandbox is probed leaves the folder of the probe."""
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    write_task(tasks / "chain.py", "return x.exp() + 1", "torch.randn(512, 256)")
    process = subprocess.Popen(
        command(tasks, "--out", out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    child = _await_child(process.pid)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (
        len(_below(child)) < 3 or list(tmp_path.glob("cuagent-probe-*/"))
    ):
        time.sleep(0.05)  # its fork server, and a process of that one
    started = _below(child)
    assert len(started) >= 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (_living(started) or list(tmp_path.glob("cuagent-*/"))):
        time.sleep(0.05)
    assert not _living(started)
    assert not list(tmp_path.glob("cuagent-*/"))


def test_an_interrupt_ends_with_130_and_the_same_command_resumes(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    write_task(tasks / "a_wrong.py", "return x @ x")
    write_task(tasks / "b_chain.py", "return x.exp() + 1", "torch.randn(512, 256)")
    process = subprocess.Popen(
        command(tasks, "--out", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert "a_wrong: failed" in first
    assert process.returncode == 130
    # The second problem may not have started when the signal arrives.
    assert re.search(
        r"1 of 2 problems are done(, 1 in flight begins again: [^;]+)?; the same command", errors
    )
    assert states(out).keys() == {"a_wrong"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_twelve_tasks_killed_at_random_give_the_same_results(twelve: Path, tmp_path: Path) -> None:
    whole = subprocess.run(command(twelve, "--out", tmp_path / "whole"), timeout=1700, check=False)
    assert whole.returncode == 0
    out, rng = tmp_path / "killed", random.Random(19)
    for _ in range(KILLS):
        process = subprocess.Popen(command(twelve, "--out", out))
        time.sleep(rng.uniform(2, 120))
        process.kill()
        process.wait()
    done = subprocess.run(command(twelve, "--out", out), timeout=1700, check=False)
    assert done.returncode == 0
    assert len(read_results(out)) == 12
    assert states(out) == states(tmp_path / "whole")


@pytest.mark.timeout(900)
def test_a_ray_cluster_gives_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    tasks = tmp_path / "tasks"
    write_task(tasks / "sum.py", "return (x * 3).sum(1)", "torch.randn(128, 64)")
    write_task(tasks / "wrong.py", "return x @ x")
    done = bench(tasks, "--out", tmp_path / "out", "--engine", "ray", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    found = states(tmp_path / "out")
    assert found["wrong"][0] == "failed"
    assert found["sum"][0] in ("accepted", FREE, "no kernel")
    assert found["sum"][2] == "reduction"


@pytest.mark.gpu
def test_problems_share_a_gpu_and_hold_it_alone_only_to_time(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    for name, forward in (("a", "x.exp() + 1"), ("b", "x.tanh() * 2"), ("c", "x.softmax(-1)")):
        write_task(tasks / f"{name}.py", f"return {forward}", "torch.randn(4096, 4096)")
    words = [*command(tasks, "--out", out, "--jobs", 3), "--device", "cuda"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stderr
    records = {r["problem"]: r for r in read_results(out)}
    assert all((r["strict"] or {}).get("passed") for r in records.values())
    for record in records.values():
        held = record["seconds"]
        assert 0 < held["timing_s"] < held["total_s"]
        assert held["shared_s"] > 0


def test_an_order_survives_json() -> None:
    settings = BenchSettings(rules=Rules.KERNELS_ONLY)
    order = Order("a", "a.py", "tasks", "", settings, "key", "runs", "0", (1, 2))
    assert Order.from_json(order.to_json()) == order


def _await_child(pid: int) -> int:
    """Return the process of the first problem, which the benchmark's fork server forked."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for server in _children(pid):
            with suppress(OSError):  # it has ended
                if b"fork_server_main" not in Path(f"/proc/{server}/cmdline").read_bytes():
                    continue
            for child in _children(server):
                return child
        time.sleep(0.05)
    raise AssertionError("no problem was started")


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none of those that end meanwhile."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _below(leader: int) -> list[int]:
    """Return a process and all that it has started."""
    return [leader, *(found for child in _children(leader) for found in _below(child))]


def _living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
