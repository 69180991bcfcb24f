"""The owner of a processor, and what the pool keeps on disk."""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.judge import Judge
from cuagent.task import Device, Task, TaskError
from cuagent.timing import Effort
from cuagent.training.demo import fitting_judges_per_gpu, open_pool
from cuagent.training.gym import chain_of, make_chains, make_tasks
from cuagent.training.judge_process import (
    MAX_OPEN_TASKS,
    JudgeCache,
    PoolError,
    max_open_tasks,
    pin_to_core,
    visible_device,
)
from cuagent.training.pool import JudgePool, read_judgements
from cuagent.training.presets import DemoConfig, preset
from cuagent.training.teacher import ErrorRates, Teacher, initial_files
from cuagent.worker import ForkServer
from cuagent.worker.memory.cuda_ipc import CudaMemoryError

STARTS_ANOTHER = """
import multiprocessing, os, time
from cuagent.training.judge_process import exit_with_parent

def child():
    exit_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(60)
"""


def test_what_a_killed_process_started_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(STARTS_ANOTHER)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
        until = time.monotonic() + 20
        while runs(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not runs(child)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_processor_means_one_thread_whoever_imported_torch(
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


def test_judgements_follow_those_of_a_run_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "judgements.pickle"
    whole = [pickle.dumps((("task", name), name)) for name in "abc"]
    file.write_bytes(whole[0] + whole[1][:-5])
    assert [key for key, _ in read_judgements(file)] == [("task", "a")]
    with file.open("ab") as more:
        more.write(whole[2])
    assert [key for key, _ in read_judgements(file)] == [("task", "a"), ("task", "c")]


def test_what_trains_and_compiles_keeps_off_the_processors_that_judge(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two processors")
    with open_pool(DemoConfig(cores=1), tmp_path) as pool:
        assert len(pool.cores) == 1
        assert os.sched_getaffinity(0) == before - set(pool.cores)
    assert os.sched_getaffinity(0) == before
    with open_pool(DemoConfig(cores=len(before)), tmp_path):  # none is left over
        assert os.sched_getaffinity(0) == before


def test_what_was_opened_beforehand_is_judged_without_opening_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make_tasks(tmp_path, make_chains(1, 3, seed=0), Device.CPU, rows=8)
    (tmp_path / "broken.py").write_text("raise ValueError")
    broken = replace(tasks[2], path=tmp_path / "broken.py", source="raise ValueError")
    opened, fork_servers = list[Task](), set[int]()

    class Counted(Judge):
        def __init__(
            self, task: Task, isolation: Any, fork_server: ForkServer, **rest: Any
        ) -> None:
            opened.append(task)
            fork_servers.add(fork_server.pid)
            super().__init__(task, isolation, fork_server=fork_server, **rest)

    monkeypatch.setattr("cuagent.judge.Judge", Counted)
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


def test_every_owner_opens_its_tasks_until_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, list[list[str]]] = {"a": [], "b": []}

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self, tasks: Sequence[str], timed: bool) -> None:
            said[self.name].append(list(tasks))

    owners = {"a": Named("a"), "b": Named("b")}
    pool = JudgePool(None, cores=(0, 1))
    monkeypatch.setattr(pool, "_judge_process", lambda task: owners[task[0]])
    tasks: Any = ["a1", "b1", "a2"]
    pool.open(tasks)
    assert said == {"a": [["a1"], ["a2"]], "b": [["b1"]]}  # one at a time on one processor
    pool.cores = ()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(5)))
    pool.open(tasks)
    assert said["a"][-1] == ["a1", "a2"]
    pool.open(tasks, should_stop=lambda: True)
    assert len(said["a"]) == 3


@pytest.mark.gpu
def test_tasks_that_a_gpus_owner_opened_at_once_are_judged_and_timed(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path, make_chains(1, 3, seed=0), Device.CUDA, rows=1 << 16)
    with JudgePool(Effort.GLANCE) as pool:
        pool.open(tasks)
        for task in tasks:
            teacher = Teacher(Device.CUDA, chain_of(task), 0, ErrorRates(0, 0, 0, 0, 0))
            found = pool.judge(task, teacher.attempt(initial_files(task)))
            assert found.verdict.accepted
            assert found.timing is not None
            assert found.timing.ratios.keys() == {"eager", "compile"}


def test_owners_of_one_gpu_take_turns_and_those_of_two_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int | None, DeviceLock]] = []

    class Noted:
        def __init__(
            self,
            isolation: str,
            gpu: int | None,
            core: Any,
            device_lock: DeviceLock,
            judges_per_gpu: int,
        ):
            assert judges_per_gpu == 2, "by which an owner knows its share of the memory"
            made.append((gpu, device_lock))

        def close(self) -> None:
            pass

    monkeypatch.setattr("cuagent.training.pool.JudgeProcess", Noted)
    tasks: Any = [SimpleNamespace(digest=str(n), device=Device.CUDA) for n in range(5)]
    with JudgePool(gpus=(2, 3), judges_per_gpu=2) as pool:
        owners = [pool._judge_process(task) for task in tasks]
        assert [gpu for gpu, _ in made] == [2, 3, 2, 3]
        assert made[0][1] == made[2][1] != made[1][1] == made[3][1]
        assert owners[4] is owners[0]
        host: Any = SimpleNamespace(digest="host", device=Device.CPU)
        assert pool._judge_process(host) not in owners, "one process is for a GPU or for the host"
        folder = made[0][1].lock
        assert folder is not None
        assert folder.parent.exists()
    assert not folder.parent.exists()


def test_a_task_whose_baseline_was_lost_gets_a_new_judge_once(
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
        """A judge that loses eager for good when it is told so."""

        def __init__(self, task: Task, *_: Any, **__: Any) -> None:
            opened.append(task.digest)

        def judge(self, attempt: Attempt, effort: Effort | None) -> Any:
            return judgement(fails.pop(0))

        def close(self) -> None:
            pass

    monkeypatch.setattr("cuagent.judge.Judge", Scripted)
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


def test_no_more_tasks_are_open_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("cuagent.judge.Judge", Noted)
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


def test_owners_of_a_gpu_share_its_memory_and_ask_for_it_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 1 << 30
    turns: list[str] = []

    def memory() -> int:
        with (tmp_path / "gpu-0").open("a") as device, suppress(BlockingIOError):
            fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
            turns.append("nobody's")
        return 24 * gib

    monkeypatch.setattr("cuagent.training.judge_process.gpu_memory", memory)
    assert JudgeCache("auto", DeviceLock(tmp_path / "gpu-0"), sharing_gpu=3).max_open == 1
    assert not turns
    assert JudgeCache("auto").max_open == MAX_OPEN_TASKS
    monkeypatch.setattr("cuagent.training.judge_process.gpu_memory", lambda: None)
    assert JudgeCache("auto", sharing_gpu=3).max_open == MAX_OPEN_TASKS
    assert max_open_tasks(24 * gib, 1) == 5
    assert max_open_tasks(24 * gib, 3) == max_open_tasks(8 * gib, 2) == 1
    assert max_open_tasks(140 * gib, 3) == 11
    assert max_open_tasks(140 * gib, 1) == MAX_OPEN_TASKS


def test_a_demonstration_takes_no_more_owners_than_can_hold_its_tasks_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def owners(gib: int, gpus: tuple[int, ...] = (0,)) -> int:
        about = (SimpleNamespace(total_memory=gib << 30),) * 2

        def properties(index: int) -> Any:
            assert index < len(about), "Invalid device id"  # as torch says it
            return about[index]

        monkeypatch.setattr("torch.cuda.get_device_properties", properties)
        return fitting_judges_per_gpu(replace(preset("cuda", Device.CUDA, 0), gpus=gpus))

    assert owners(140) == 3
    assert owners(76) == 3
    assert owners(70) == 2
    assert owners(44, (0, 1)) == 3
    assert owners(24) == 1
    assert owners(24, (0, 5)) == 3, "that there is no such GPU is told where a task is opened on it"


def test_an_owner_sees_the_gpu_that_its_pool_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_device(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert [visible_device(0), visible_device(1)] == ["2", "5"]
    with pytest.raises(PoolError, match="no GPU 2 to judge on"):
        visible_device(2)
