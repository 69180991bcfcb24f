"""Candidates that share one device, with CUDA's calls replaced by ones that do nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synth_tasks import order, task

from cuagent.synth.examine import Examined
from cuagent.synth.reasons import Reason
from cuagent.synth.shared_gpu import SharedGpu
from cuagent.synth.workers import Workers

GIB = 1 << 30


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 20 * GIB))


def test_a_candidate_waits_for_the_memory_of_another(tmp_path: Path) -> None:
    first, second = (SharedGpu(str(tmp_path / "gpu.lock")) for _ in range(2))
    entered = threading.Event()

    def enter() -> None:
        with second.memory(9 * GIB):
            entered.set()

    with first.memory(9 * GIB):
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(1.0)
        first.resize(2 * GIB)
        assert entered.wait(60)
    thread.join()
    assert second.waited_s > 0.1
    assert first.waited_s < second.waited_s


def test_memory_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "gpu.memory"
    folder.mkdir()
    (folder / f"{16 * GIB}.dead").touch()
    gpu = SharedGpu(str(tmp_path / "gpu.lock"))
    with gpu.memory(None):
        assert [path.name.partition(".")[0] for path in folder.iterdir()] == [str(17 * GIB)]
    assert list(folder.iterdir()) == []
    assert gpu.waited_s < 20  # usually below 0.1 s


def test_larger_memory_is_awaited_without_holding_any(tmp_path: Path) -> None:
    first, second = (SharedGpu(str(tmp_path / "gpu.lock")) for _ in range(2))

    def enlarge(gpu: SharedGpu) -> None:
        with gpu.memory(8 * GIB):
            gpu.resize(12 * GIB)

    threads = [threading.Thread(target=enlarge, args=(gpu,)) for gpu in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_need_beyond_the_memory_gets_all_of_it(tmp_path: Path) -> None:
    gpu = SharedGpu(str(tmp_path / "gpu.lock"))
    with gpu.memory(90 * GIB):
        assert gpu.progress.seen.memory == 17 * GIB


def test_a_timing_has_the_device_alone_once_the_checks_give_way(tmp_path: Path) -> None:
    checking, timing = (SharedGpu(str(tmp_path / "gpu.lock")) for _ in range(2))
    timed, ended, overlaps = threading.Event(), threading.Event(), []

    def measure() -> None:
        with timing.exclusive():
            timed.set()
            time.sleep(0.1)
            ended.set()

    with checking.shared():
        thread = threading.Thread(target=measure)
        thread.start()
        assert not timed.wait(0.2)
        while not ended.is_set():
            checking.give_way()
            overlaps.append(timed.is_set() and not ended.is_set())
            time.sleep(0.01)
        thread.join()
    assert not any(overlaps)


@pytest.mark.slow
def test_two_candidates_are_examined_at_the_same_time(tmp_path: Path) -> None:
    codes = [task("return F.softmax(x, dim=-1)"), task("return torch.cumsum(F.gelu(x), dim=1)")]
    labels = [["nn.functional.softmax"], ["nn.functional.gelu", "torch.cumsum"]]
    answers: dict[int, dict[str, Any]] = {}

    def examine(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        asked = replace(
            order(codes[number], *labels[number], solve=True), lock=str(tmp_path / "gpu.lock")
        )
        stages: dict[str, float] = {}
        answers[number] = Examined(asked, folder, stages).facts() | {"stages": stages}

    threads = [threading.Thread(target=examine, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert {number: answer["batch"] > 0 for number, answer in answers.items()} == {
        0: True,
        1: True,
    }
    assert set(answers[0]["stages"]) >= {"labels", "sizes", "fit", "fp64", "certified", "waiting"}


WITHOUT_CUDA = """import time
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
torch.cuda.mem_get_info = lambda: (0, 20 << 30)
"""


@pytest.mark.slow
def test_candidate_that_keeps_the_device_is_ended_and_the_others_go_on(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call takes minutes at a size that no measurement of smaller ones predicts."""
    monkeypatch.setattr("cuagent.synth.process.INTERVAL_LIMIT_S", 10.0)
    hangs = "if x.shape[0] > 100: time.sleep(300)\n        return torch.exp(x)"
    forwards = {hangs: "torch.exp", "return F.gelu(x)": "nn.functional.gelu"}
    forwards |= {"return torch.sinh(x)": "torch.sinh"}

    def examine(item: tuple[str, str]) -> dict[str, Any]:
        code = task(item[0], before=WITHOUT_CUDA)
        asked = replace(order(code, item[1], solve=True), lock=str(tmp_path / "gpu.lock"))
        return workers.examine(asked, limit_s=300)

    started = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(examine, forwards.items())
    assert first["reason"] == Reason.SLOW.value
    assert first["gpu"]["longest_s"] > 10
    assert first["gpu"]["longest_stage"] == "sizes"
    assert all("reason" not in answer for answer in others), others
    assert all(answer["gpu"]["longest_s"] < 10 for answer in others), others
    assert time.monotonic() - started < 250  # usually below 20 s


@pytest.mark.slow
def test_slow_operator_is_sized_without_a_call_at_the_predicted_size(
    tmp_path: Path, workers: Workers
) -> None:
    """The predicted size of this task has tens of thousands of rows, so a call there would take
    minutes."""
    slow = "time.sleep(x.shape[0] * 1e-3)\n        return torch.exp(x)"
    asked = order(task(slow, before=WITHOUT_CUDA), "torch.exp", solve=True)
    answer = workers.examine(replace(asked, lock=str(tmp_path / "gpu.lock")))
    assert answer["gpu"]["longest_s"] < 15  # usually below one second
    assert answer.get("batch", 0) <= 20, answer


@pytest.mark.slow
def test_tasks_of_fixed_size_are_checked_at_the_same_time(tmp_path: Path, workers: Workers) -> None:
    """An audit checks rows at their own sizes; none of them may need all of the memory."""
    lock = str(tmp_path / "gpu.lock")
    asked = order(task("return torch.exp(x)", before=WITHOUT_CUDA), "torch.exp")
    with SharedGpu(lock).memory(8 * GIB):
        answer = workers.examine(replace(asked, lock=lock), limit_s=300)
    assert "reason" not in answer, answer
    assert answer["gpu"]["awaits memory_s"] < 20  # usually 0
