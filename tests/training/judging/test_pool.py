"""Test the pool of judging processes and its cache file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.device_lock import DeviceLock
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.training.demo.devices import fitting_judges_per_gpu, open_pool
from cuagent.training.demo.gym import chain_of, make_chains, make_tasks
from cuagent.training.demo.presets import DemoConfig, preset
from cuagent.training.demo.teacher import ErrorRates, Teacher, initial_files
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.judging.pool import JudgePool, entry, read_judgements


def test_partial_last_judgement_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "judgements.pickle"
    whole = [entry((("task", name), name)) for name in "abc"]
    for part in (whole[1][:-5], whole[1][:20]):
        file.write_bytes(whole[0] + part)
        assert [key for key, _ in read_judgements(file)] == [("task", "a")]
        with file.open("ab") as more:
            more.write(whole[2])
        assert [key for key, _ in read_judgements(file)] == [("task", "a"), ("task", "c")]


class _Payload:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "code ran")


@pytest.mark.parametrize("forged", ["plain", "other code", "changed"])
def test_judgements_of_unknown_origin_are_never_unpickled(tmp_path: Path, forged: str) -> None:
    """The folder of a training run may come with a cloned repository."""
    file, trace = tmp_path / "judgements.pickle", tmp_path / "trace"
    content = pickle.dumps(_Payload(trace))
    own = entry((("task", "a"), "a"))
    head = own[: len(own) - len(pickle.dumps((("task", "a"), "a")))]
    sized = head[:-8] + len(content).to_bytes(8, "little")
    texts = {"plain": content, "other code": sized + content, "changed": own[:-1] + b"!"}
    file.write_bytes(texts[forged])
    with pytest.raises(PoolError, match="unknown origin"), JudgePool(cache_file=file):
        pass
    assert not trace.exists()


def test_cache_of_judgements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the oldest judgements are forgotten, but none that an episode waits for."""
    monkeypatch.setattr("cuagent.training.judging.pool.MOST_KEPT", 2)
    pool = JudgePool(None)
    futures: list[Future[Any]] = [Future() for _ in range(5)]
    pool._cache |= {("task", str(n)): future for n, future in enumerate(futures)}
    for n in (0, 1, 3, 4):
        futures[n].set_result(None)
    pool._forget_oldest()
    assert [n for _, n in pool._cache] == ["2", "3", "4"]
    futures[2].set_result(None)
    pool._forget_oldest()
    assert [n for _, n in pool._cache] == ["3", "4"]


def test_pool_keeps_training_process_off_judging_cores(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two processors")
    with open_pool(DemoConfig(cores=1), tmp_path) as pool:
        assert len(pool.cores) == 1
        assert os.sched_getaffinity(0) == before - set(pool.cores)
    assert os.sched_getaffinity(0) == before
    with open_pool(DemoConfig(cores=len(before)), tmp_path):  # none is left over
        assert os.sched_getaffinity(0) == before


def test_pool_opens_tasks_until_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, list[list[str]]] = {"a": [], "b": []}

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self, tasks: Sequence[str], timed: bool) -> None:
            said[self.name].append(list(tasks))

    processes = {"a": Named("a"), "b": Named("b")}
    pool = JudgePool(None, cores=(0, 1))
    monkeypatch.setattr(pool, "_judge_process", lambda task: processes[task[0]])
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
def test_gpu_tasks_opened_in_parallel_are_judged_and_timed(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path, make_chains(1, 3, seed=0), Device.CUDA, rows=1 << 16)
    with JudgePool(Effort.GLANCE) as pool:
        pool.open(tasks)
        for task in tasks:
            teacher = Teacher(Device.CUDA, chain_of(task), 0, ErrorRates(0, 0, 0, 0, 0))
            found = pool.judge(task, teacher.attempt(initial_files(task)))
            assert found.verdict.accepted
            assert found.timing is not None
            assert found.timing.ratios.keys() == {"eager", "compile"}


def test_processes_of_one_gpu_share_its_lock(
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
            assert judges_per_gpu == 2, "a process needs it for its share of the memory"
            made.append((gpu, device_lock))

        def close(self) -> None:
            pass

    monkeypatch.setattr("cuagent.training.judging.pool.JudgeProcess", Noted)
    tasks: Any = [SimpleNamespace(digest=str(n), device=Device.CUDA) for n in range(5)]
    with JudgePool(gpus=(2, 3), judges_per_gpu=2) as pool:
        processes = [pool._judge_process(task) for task in tasks]
        assert [gpu for gpu, _ in made] == [2, 3, 2, 3]
        assert made[0][1] == made[2][1] != made[1][1] == made[3][1]
        assert processes[4] is processes[0]
        host: Any = SimpleNamespace(digest="host", device=Device.CPU)
        assert pool._judge_process(host) not in processes, (
            "one process is for a GPU or for the host"
        )
        folder = made[0][1].lock
        assert folder is not None
        assert folder.parent.exists()
    assert not folder.parent.exists()


def test_demo_limits_judges_per_gpu_to_fit_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def processes(gib: int, gpus: tuple[int, ...] = (0,)) -> int:
        about = (SimpleNamespace(total_memory=gib << 30),) * 2

        def properties(index: int) -> Any:
            assert index < len(about), "Invalid device id"  # as torch says it
            return about[index]

        monkeypatch.setattr("torch.cuda.get_device_properties", properties)
        return fitting_judges_per_gpu(replace(preset("cuda", Device.CUDA, 0), gpus=gpus))

    assert processes(140) == 3
    assert processes(76) == 3
    assert processes(70) == 2
    assert processes(44, (0, 1)) == 3
    assert processes(24) == 1
    assert processes(24, (0, 5)) == 3, "opening a task reports the missing GPU"
