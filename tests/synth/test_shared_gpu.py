"""Candidates that share one device, with CUDA's calls replaced by ones that do nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synth_tasks import order, task

from cuagent.synth.examine import Examined
from cuagent.synth.shared_gpu import PEAK, SharedGpu, slots

GIB = 1 << 30


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 20 * GIB))


def test_as_many_candidates_have_a_slot_as_fit() -> None:
    assert slots(80 * GIB, 2 * GIB) == 80 // (2 * PEAK)
    assert slots(GIB, 2 * GIB) == 1


def test_a_second_candidate_waits_for_the_memory_of_the_first(tmp_path: Path) -> None:
    first, second = (SharedGpu(str(tmp_path / "gpu.lock"), 2 * GIB) for _ in range(2))
    entered = threading.Event()

    def enter() -> None:
        with second.slot():
            entered.set()

    with first.slot():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    thread.join()
    assert second.waited_s > 0.1
    assert first.waited_s < 0.1


def test_a_timing_has_the_device_alone_once_the_checks_give_way(tmp_path: Path) -> None:
    checking, timing = (SharedGpu(str(tmp_path / "gpu.lock"), GIB) for _ in range(2))
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
        thread.join(100)
    assert {number: answer["batch"] > 0 for number, answer in answers.items()} == {
        0: True,
        1: True,
    }
    assert set(answers[0]["stages"]) >= {"labels", "sizes", "fit", "fp64", "certified", "waiting"}
