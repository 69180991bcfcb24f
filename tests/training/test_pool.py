"""The owner of a processor, and what the pool keeps on disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cuagent.training.demo import judges
from cuagent.training.pool import kept, stay_on
from cuagent.training.presets import DemoConfig

STARTS_ANOTHER = """
import multiprocessing, os, time
from cuagent.training.pool import follow_parent

def child():
    follow_parent()
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
        stay_on(min(before))
        assert os.sched_getaffinity(0) == {min(before)}
        assert torch.get_num_threads() == 1
        assert os.environ["OMP_NUM_THREADS"] == "1"
    finally:
        os.sched_setaffinity(0, before)


def test_judgements_follow_those_of_a_run_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "judgements.pickle"
    whole = [pickle.dumps((("task", name), name)) for name in "abc"]
    file.write_bytes(whole[0] + whole[1][:-5])
    assert [key for key, _ in kept(file)] == [("task", "a")]
    with file.open("ab") as more:
        more.write(whole[2])
    assert [key for key, _ in kept(file)] == [("task", "a"), ("task", "c")]


def test_what_trains_and_compiles_keeps_off_the_processors_that_judge(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two processors")
    with judges(DemoConfig(cores=1), tmp_path) as pool:
        assert len(pool.cores) == 1
        assert os.sched_getaffinity(0) == before - set(pool.cores)
    assert os.sched_getaffinity(0) == before
    with judges(DemoConfig(cores=len(before)), tmp_path):  # none is left over
        assert os.sched_getaffinity(0) == before
