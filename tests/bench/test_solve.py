"""Solve one problem on a shared device: compile ahead, and count the memory that it holds."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make_tasks import write_task

from cuagent.bench import optimize as optimizing
from cuagent.bench import solve as solving
from cuagent.bench.optimize import Interrupted, _lacked_memory
from cuagent.bench.order import BenchSettings
from cuagent.bench.problems import Problem
from cuagent.bench.scheduler import orders_for
from cuagent.bench.solve import solve
from cuagent.device_lock import DeviceLock
from cuagent.judge import LocalJudge
from cuagent.measure import rung_compiler
from cuagent.measure.ladder import NO_ROOM
from cuagent.measure.timing import timer
from cuagent.timing import Effort
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

pytestmark = pytest.mark.slow


def compiling_before_certifying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the certifier wait until a rung was compiled: both must run at the same time."""
    compiled = threading.Event()
    precompile, certify = rung_compiler.precompile, solving.certify

    def compiling(*arguments: Any) -> Any:
        try:
            return precompile(*arguments)
        finally:
            compiled.set()

    def certifying(*arguments: Any, **named: Any) -> Any:
        assert compiled.wait(600)
        return certify(*arguments, **named)

    monkeypatch.setattr(rung_compiler, "precompile", compiling)
    monkeypatch.setattr(rung_compiler, "COMPILED_AHEAD_S", 600.0)  # the machine may be busy
    monkeypatch.setattr(solving, "certify", certifying)


def test_a_problem_on_a_shared_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timer.BUDGET_S, Effort.RECORD, 3.0)  # the fewest repeats allowed
    compiling_before_certifying(monkeypatch)
    path = write_task(tmp_path / "task.py", "return torch.tanh(x * 2 + 1)", "torch.randn(256, 64)")
    settings = BenchSettings(max_time_s=300)
    (order,) = orders_for([Problem("L1/1", path, "level 1")], settings, "a device", tmp_path)
    seen: list[dict[str, Any]] = []
    record = solve(order, DeviceLock(tmp_path / "device.lock"), seen.append)
    assert (record["strict"] or {}).get("passed"), record["reason"]
    phases = [message.get("phase") for message in seen]
    assert phases.index("compiling the rungs") < phases.index("opening the rungs")
    held = record["seconds"]
    stages = record["stages"]
    for stage in ("certifying", "opening", "generation", "building", "verifying", "waiting"):
        assert stages[f"{stage}_s"] >= 0, stage
    for stage in ("opening_arms", "ladder", "quick_timing", "record_timing", "compiling_ahead"):
        assert stages[f"{stage}_s"] > 0, stage
    beside = ("compiling_ahead_s", "autotuning_s", "certifying_s", "generation_s")
    background = sum(stages.get(stage, 0) for stage in beside)
    assert sum(stages.values()) - background < held["total_s"] + 1, "a second counted twice"
    sampled = sum(stages[f"{stage}_s"] for stage in ("ladder", "quick_timing", "record_timing"))
    # A clear gain is not profiled.
    sampled += stages.get("profiling_s", 0.0)
    assert held["timing_s"] < sampled + 5, "the device was held for longer"
    assert held["timing_s"] > 0
    assert held["shared_s"] > 0
    assert held["timing_s"] + held["waiting_s"] < held["total_s"]
    uses = record["lock"]
    assert record["claim_bytes"] == 0  # a CPU has no GPU memory
    assert uses["certifying"]["longest_s"] > 0
    assert uses["quick_timing"]["exclusive"] >= 1
    assert uses["record_timing"]["exclusive_s"] > 0
    alone = sum(stage.get("exclusive_s", 0) for name, stage in uses.items() if name != "autotuning")
    assert alone == pytest.approx(held["timing_s"], abs=1.0)  # usually within 0.01 s
    assert record["certification"]["family"] == "elementwise"
    assert record["key"] == order.key


def test_time_limit_includes_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free options are timed although no time is left for an attempt."""
    path = write_task(tmp_path / "task.py", "return torch.tanh(x * 2 + 1)", "torch.randn(256, 64)")
    settings = BenchSettings(max_time_s=0.0)
    (order,) = orders_for([Problem("L1/1", path, "level 1")], settings, "a device", tmp_path)
    budgets: list[float | None] = []
    begin = optimizing.start_run

    def beginning(*arguments: Any, **named: Any) -> Any:
        budgets.append(named["budget"].seconds)
        return begin(*arguments, **named)

    monkeypatch.setattr(optimizing, "start_run", beginning)
    record = solve(order, DeviceLock(), lambda _: None)
    assert budgets == [0.0]
    assert record["stop"] == "time limit"
    assert record["attempts"] == 0
    assert "eager" in record["times"]


def test_a_missing_file_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    problem = Problem("gone", tmp_path / "gone.py", "tasks")
    (order,) = orders_for([problem], BenchSettings(), "a device", tmp_path)
    record = solve(order, DeviceLock(), lambda _: None)
    assert record["status"] == "failed"
    assert "no such file" in record["reason"]


def test_an_interrupted_problem_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record would count as the problem's result, and the problem would not be done again."""
    path = write_task(tmp_path / "task.py", "return torch.tanh(x * 2 + 1)", "torch.randn(256, 64)")
    (order,) = orders_for(
        [Problem("L1/1", path, "level 1")], BenchSettings(max_time_s=300), "a device", tmp_path
    )

    def interrupt(message: dict[str, Any]) -> None:
        if str(message.get("phase")).startswith("timing"):  # of the ladder
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        solve(order, DeviceLock(), interrupt)

    def fail(*_: Any) -> None:
        raise CudaMemoryError("the context is lost")

    monkeypatch.setattr(LocalJudge, "__exit__", fail)
    with pytest.raises(Interrupted):  # an error while processes end hides no interruption
        solve(order, DeviceLock(), interrupt)


@pytest.mark.parametrize(
    ("device", "detail", "refused"),
    [
        ("cuda", "model_new.py:67: torch.OutOfMemoryError: CUDA out of memory", True),
        ("cuda", "took more than 2.6 GiB of device memory, all that is free; keep fewer", True),
        ("cuda", "element (0, 3): 1.5 instead of 2.5", False),
        ("cpu", "took more than 2.6 GiB of device memory, all that is free; keep fewer", False),
    ],
)
def test_attempt_without_memory_beside_other_problems_is_recognized(
    device: str, detail: str, refused: bool
) -> None:
    judgement = SimpleNamespace(verdict=SimpleNamespace(detail=detail))
    judge = SimpleNamespace(task=SimpleNamespace(device=device))
    tried = [SimpleNamespace(judgement=judgement)]
    run = SimpleNamespace(tried=tried, judge=judge, ladder=None, result=None)
    assert bool(_lacked_memory(run)) is refused  # type: ignore[arg-type]
    run.result = tried[0]
    assert not _lacked_memory(run)  # type: ignore[arg-type]
    run.ladder = SimpleNamespace(notes=(f"{NO_ROOM} compile too",))
    assert bool(_lacked_memory(run)) is (device == "cuda")  # type: ignore[arg-type]
