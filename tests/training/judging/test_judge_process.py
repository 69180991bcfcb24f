"""Test one judging process: its open tasks, its core, its end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.judge import LocalJudge
from cuagent.task import Device, Task, TaskError
from cuagent.timing import Effort
from cuagent.training.demo.gym import chain_of, make_chains, make_tasks
from cuagent.training.demo.teacher import ErrorRates, Teacher, initial_files
from cuagent.training.judging.judge_process import (
    MAX_OPEN_TASKS,
    JudgeCache,
    JudgeProcess,
    PoolError,
    max_open_tasks,
    pin_to_core,
    visible_device,
)
from cuagent.worker import ForkServer
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

STARTS_ANOTHER = """
import multiprocessing, os, time
from cuagent.training.judging.judge_process import exit_with_parent

def child():
    exit_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(300)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(300)
"""


@pytest.fixture
def judge_process() -> Iterator[JudgeProcess]:
    started = JudgeProcess("auto", None, None, DeviceLock())
    yield started
    started.close()


def test_killed_judging_process_is_replaced(judge_process: JudgeProcess) -> None:
    """Check that a kill (of the kernel, when memory is short) costs no later reward."""
    before = judge_process._process.pid
    assert before is not None
    judge_process.open([], timed=False)
    os.kill(before, signal.SIGKILL)
    judge_process.open([], timed=False)
    assert judge_process._process.pid != before


def test_request_that_crashes_two_processes_is_an_error(
    judge_process: JudgeProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PoolError, match="two judging processes died in turn"):
        judge_process._ask("no such method", None)
    judge_process.open([], timed=False)


def test_interrupted_judging_process_is_not_replaced(judge_process: JudgeProcess) -> None:
    judge_process.open([], timed=False)
    assert judge_process._process.pid is not None
    os.kill(judge_process._process.pid, signal.SIGINT)
    with pytest.raises(PoolError, match="run the command again"):
        judge_process.open([], timed=False)


def test_child_exits_with_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(STARTS_ANOTHER)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
        until = time.monotonic() + 60
        while runs(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not runs(child)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_pin_to_core_sets_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "4")
    before = os.sched_getaffinity(0)
    torch.set_num_threads(4)
    try:
        pin_to_core(min(before))
        assert os.sched_getaffinity(0) == {min(before)}
        assert torch.get_num_threads() == 1
        assert os.environ["OMP_NUM_THREADS"] == "1"
    finally:
        os.sched_setaffinity(0, before)


def test_opened_task_is_judged_without_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make_tasks(tmp_path, make_chains(1, 3, seed=0), Device.CPU, rows=8)
    (tmp_path / "broken.py").write_text("raise ValueError")
    broken = replace(tasks[2], path=tmp_path / "broken.py", source="raise ValueError")
    opened, fork_servers = list[Task](), set[int]()

    class Counted(LocalJudge):
        def __init__(
            self, task: Task, isolation: Any, fork_server: ForkServer, **rest: Any
        ) -> None:
            opened.append(task)
            fork_servers.add(fork_server.pid)
            super().__init__(task, isolation, fork_server=fork_server, **rest)

    monkeypatch.setattr("cuagent.judge.LocalJudge", Counted)
    cache = JudgeCache("auto")
    try:
        cache.open([*tasks[:2], broken], timed=False)
        assert sorted(t.name for t in opened) == sorted(t.name for t in [*tasks[:2], broken])
        flawless = Teacher(Device.CPU, chain_of(tasks[0]), 0, ErrorRates(0, 0, 0, 0, 0))
        found = cache.judge(tasks[0], flawless.attempt(initial_files(tasks[0])), None)
        assert found.verdict.accepted
        assert len(opened) == 3
        assert len(fork_servers) == 1, "torch was imported once for each task"
        with pytest.raises(TaskError):
            cache.judge(broken, Attempt(()), None)
    finally:
        cache.close()


def test_lost_baseline_gets_new_judge_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judgement(failed: str) -> Any:
        arms = [SimpleNamespace(name=name, failed="") for name in ("candidate", "compile")]
        arms.append(SimpleNamespace(name="eager", failed=failed))
        verdict, timing = SimpleNamespace(accepted=True), SimpleNamespace(arms=arms)
        return SimpleNamespace(verdict=verdict, timing=timing, said=failed)

    opened: list[str] = []
    fails: list[str] = []

    class Scripted:
        """A judge that loses the eager baseline as scripted."""

        def __init__(self, task: Task, *_: Any, **__: Any) -> None:
            opened.append(task.digest)

        def judge(self, attempt: Attempt, effort: Effort | None) -> Any:
            return judgement(fails.pop(0))

        def close(self) -> None:
            pass

    monkeypatch.setattr("cuagent.judge.LocalJudge", Scripted)
    cache = JudgeCache("auto")
    monkeypatch.setattr(cache, "_live_fork_server", lambda: None)
    task: Any = SimpleNamespace(digest="t")

    def twice() -> list[str]:
        return [cache.judge(task, Attempt(()), Effort.GLANCE).said for _ in range(2)]  # type: ignore[attr-defined]

    fails[:] = ["", "lost", ""]
    assert twice() == ["", ""]
    assert len(opened) == 2
    fails[:] = ["does not open"] * 3
    assert twice() == ["does not open"] * 2
    assert len(opened) == 3, "what does not open a second time is not tried again"
    cache.close()


def test_open_tasks_stay_within_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now_open: list[str] = []
    max_open: list[int] = []
    room = 3

    class Noted:
        def __init__(self, task: Task, *_: Any, **__: Any) -> None:
            if len(now_open) >= room:
                raise CudaMemoryError("cuMemAlloc_v2: out of memory")
            self.name = task.digest
            now_open.append(self.name)
            max_open.append(len(now_open))

        def open(self) -> None: ...

        def judge(self, attempt: Attempt, effort: Effort | None) -> Any:
            return SimpleNamespace(timing=None)

        def close(self) -> None:
            now_open.remove(self.name)

    monkeypatch.setattr("cuagent.judge.LocalJudge", Noted)
    cache = JudgeCache("auto")
    monkeypatch.setattr(cache, "max_open", 2)
    monkeypatch.setattr(cache, "_live_fork_server", lambda: None)
    tasks: list[Any] = [SimpleNamespace(digest=name) for name in "abc"]
    cache.open(tasks, timed=True)
    assert sorted(now_open) == ["a", "b"]
    cache.judge(tasks[0], Attempt(()), None)
    cache.judge(tasks[2], Attempt(()), None)
    assert sorted(now_open) == ["a", "c"], "not the one that was asked for longest ago"
    assert max(max_open) == 2, "one is closed before another is opened"
    room = 1
    cache.judge(tasks[1], Attempt(()), None)
    assert now_open == ["b"], "who finds no memory for a task closes others"
    room = 0
    with pytest.raises(CudaMemoryError):
        cache.judge(tasks[0], Attempt(()), None)
    assert not now_open


def test_processes_of_gpu_share_memory_and_query_it_under_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 1 << 30
    turns: list[str] = []

    def memory() -> int:
        with (tmp_path / "gpu-0").open("a") as device, suppress(BlockingIOError):
            fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
            turns.append("nobody's")
        return 24 * gib

    monkeypatch.setattr("cuagent.training.judging.judge_process.gpu_memory", memory)
    assert JudgeCache("auto", DeviceLock(tmp_path / "gpu-0"), sharing_gpu=3).max_open == 1
    assert not turns
    assert JudgeCache("auto").max_open == MAX_OPEN_TASKS
    monkeypatch.setattr("cuagent.training.judging.judge_process.gpu_memory", lambda: None)
    assert JudgeCache("auto", sharing_gpu=3).max_open == MAX_OPEN_TASKS
    assert max_open_tasks(24 * gib, 1) == 5
    assert max_open_tasks(24 * gib, 3) == max_open_tasks(8 * gib, 2) == 1
    assert max_open_tasks(140 * gib, 3) == 11
    assert max_open_tasks(140 * gib, 1) == MAX_OPEN_TASKS


def test_visible_device_counts_within_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_device(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert [visible_device(0), visible_device(1)] == ["2", "5"]
    with pytest.raises(PoolError, match="no GPU 2 to judge on"):
        visible_device(2)
