"""Test each rejection of the filter with a planted fault, in real forked processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synth_tasks import order, task

from cuagent.synth.reasons import Reason
from cuagent.synth.workers import Workers

pytestmark = pytest.mark.slow

FAULTS = {
    "raises": (task("return torch.exp(x, 1, 2)"), ["torch.exp"], Reason.FAILS),
    "random": (
        task("return torch.add(x, torch.randn_like(x))"),
        ["torch.randn_like", "torch.add"],
        Reason.RANDOM,
    ),
    "label": (task("return torch.exp(x)"), ["torch.diag"], Reason.LABEL),
    "infinite": (task("return torch.log(x)"), ["torch.log"], Reason.NOT_FINITE),
    "fp64": (
        task("return torch.exp(x).to(torch.float32)"),
        ["torch.exp", "torch.to"],
        Reason.FP64_FAILS,
    ),
    "ignored input": (
        task("return torch.exp(x)", arguments="x, y", inputs="torch.randn(8, 64), torch.randn(8)"),
        ["torch.exp"],
        Reason.IGNORED,
    ),
    "ignored weight": (
        task("return torch.exp(x)", init="self.w = nn.Parameter(torch.randn(64))"),
        ["torch.exp"],
        Reason.IGNORED,
    ),
    "constant": (
        task("return torch.mean(x)", inputs="torch.randn(200, 1000)"),
        ["torch.mean"],
        Reason.DEGENERATE,
    ),
    "no effect": (
        task("return torch.relu(torch.relu(x))"),
        ["torch.relu", "torch.relu"],
        Reason.IDLE,
    ),
    "training": (
        task("return self.drop(torch.exp(x))", init="self.drop = nn.Dropout(0.5)"),
        ["torch.exp", "nn.Dropout"],
        Reason.TRAINING,
    ),
    "dies": (
        task("os.abort()", before="import os"),
        [],
        Reason.CRASHED,
    ),
    "no task": (task("return x", before="raise ValueError('no')"), [], Reason.SOURCE),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_rejected_with_its_reason(fault: str, workers: Workers) -> None:
    code, labels, reason = FAULTS[fault]
    answer = workers.examine(order(code, *labels))
    assert answer["reason"] == reason.value, answer


def test_sound_task_has_its_facts_and_a_batch_in_the_window(workers: Workers) -> None:
    code = task(
        "return F.softmax(self.norm(x), dim=-1)",
        init="self.norm = nn.BatchNorm1d(64); nn.init.normal_(self.norm.running_mean)",
    )
    answer = workers.examine(
        order(code, "nn.BatchNorm1d", "nn.functional.softmax", solve=True), limit_s=200
    )
    assert "reason" not in answer, answer
    assert answer["mode"] == "eval"
    assert 1e-4 <= answer["eager_s"] <= 2e-2
    assert f"BATCH = {answer['batch']}\n" in answer["code"]
    assert answer["inputs"] == [f"float32[{answer['batch']},64]"]
    assert answer["floor_bytes"] >= 2 * 4 * 64 * answer["batch"]
    assert answer["error"] < 1e-5


def test_task_without_a_size_in_the_memory_bound_is_rejected(workers: Workers) -> None:
    code = task("return torch.exp(x)", inputs="torch.randn(BATCH, 4_000_000)")
    answer = workers.examine(order(code, "torch.exp", solve=True))
    assert answer["reason"] == Reason.MEMORY.value


def test_hanging_task_is_ended_and_leaves_nothing(workers: Workers) -> None:
    code = task("time.sleep(600)", before="import time")
    answer = workers.examine(order(code), limit_s=3)
    assert answer["reason"] == Reason.TIMED_OUT.value
    assert list(workers.fork_server.folder.glob("synth-*")) == []
    assert workers.fork_server.living == set()


def test_torch_compile_runs_and_agrees(workers: Workers) -> None:
    code = task("return torch.cumsum(F.gelu(x), dim=1)")
    asked = order(code, "nn.functional.gelu", "torch.cumsum")
    answer = workers.examine(replace(asked, compile=True))
    assert "reason" not in answer, answer
    assert answer["compile_error"] < 1e-5
    assert answer["regions"] >= 1
    broken = code.replace("return", "torch._dynamo.graph_break(); return").replace(
        "import torch\n", "import torch\nimport torch._dynamo\n", 1
    )
    wrong = broken.replace(
        "torch.cumsum(F.gelu(x), dim=1)",
        "torch.cumsum(F.gelu(x), dim=1) + 1.0 * torch.compiler.is_compiling()",
    )
    answer = workers.examine(replace(asked, code=wrong, compile=True, exact_labels=False))
    assert answer["reason"] == Reason.COMPILE_DIFFERS.value


def test_the_driver_library_of_triton_is_compiled_once(tmp_path: Path) -> None:
    with Workers("cpu", compile=False) as workers:
        for folder in ("KEY1/cuda_utils.cpython.so", "KEY2/kernel.cubin", "KEY3/launcher.so"):
            file = tmp_path / "triton" / folder
            file.parent.mkdir(parents=True)
            file.write_text(folder)
        workers._keep_driver(tmp_path / "triton")
        later = tmp_path / "later"
        later.mkdir()
        workers._environment(later, 0)
        assert [path.name for path in (later / "triton").iterdir()] == ["KEY1"]
        assert (later / "triton/KEY1/cuda_utils.cpython.so").read_text().startswith("KEY1")


def test_fork_server_is_asked_to_end_a_process_that_has_ended(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a GPU process takes long, and the fork server does nothing else meanwhile."""
    alive = []
    end = workers.fork_server.end
    monkeypatch.setattr(
        workers.fork_server, "end", lambda child: (alive.append(child.alive), end(child))[1]
    )
    slow = (
        "import atexit, os, time\n_exit = os._exit\nos._exit = lambda c: (time.sleep(1), _exit(c))"
    )
    answer = workers.examine(order(task("return torch.exp(x)", before=slow), "torch.exp"))
    assert "reason" not in answer, answer
    assert alive == [False]


def test_a_candidate_compiles_in_its_own_process_only(workers: Workers) -> None:
    alone = "import torch._inductor.config as c\nassert c.compile_threads == 1, 'several'"
    asked = order(task("return torch.exp(x)", before=alone), "torch.exp")
    answer = workers.examine(replace(asked, compile=True))
    assert "reason" not in answer, answer
    answer = workers.examine(replace(asked, code=asked.code.replace("== 1", "== 2"), compile=True))
    assert "several" in answer["detail"]


def test_children_find_the_compiler_imported(workers: Workers) -> None:
    loaded = "import sys\nassert 'torch._inductor.compile_fx' in sys.modules, 'not loaded'"
    answer = workers.examine(order(task("return torch.exp(x)", before=loaded), "torch.exp"))
    assert "reason" not in answer, answer
