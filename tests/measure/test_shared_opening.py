"""Processes that open for a timing give a shared device to another timing at once, and compute
nothing while it has the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.arms import EAGER
from cuagent.device_lock import DeviceLock
from cuagent.measure.timing import baselines
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.verify import Referee
from cuagent.worker import ForkServer

OTHER = f"{EAGER}+tf32"
STEPS, STEP_S = 150, 0.01
TASK = f"""
import os, time
import torch
from pathlib import Path

HERE = Path(__file__).parent

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 16)
        if (HERE / "slow").exists():
            with (HERE / f"steps-{{os.getpid()}}").open("w") as log:
                for _ in range({STEPS}):
                    print(time.monotonic(), file=log, flush=True)
                    time.sleep({STEP_S})

    def forward(self, x):
        return self.linear(x)

def get_init_inputs():
    return []

def get_inputs():
    return [torch.randn(64, 32)]
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def referee(tmp_path: Path, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    with Referee(load_task(path, device="cpu"), fork_server=fork_server) as opened:
        yield opened


def test_processes_that_open_stop_while_another_timing_has_the_device(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "TOGETHER", (Device.CPU,))
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    held: list[tuple[float, float]] = []

    def steps() -> list[float]:
        files = tmp_path.glob("steps-*")
        return [float(line) for file in files for line in file.read_text().split()]

    def time_elsewhere() -> None:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("steps-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        with theirs.exclusive():
            begun = time.monotonic()
            time.sleep(1.0)
            held.append((begun, time.monotonic()))

    with Timer(referee, (EAGER, OTHER), device_lock=ours) as timer:
        assert timer.batch is not None  # before the models are slow
        (tmp_path / "slow").touch()
        other = threading.Thread(target=time_elsewhere)
        other.start()
        with timer.untimed((EAGER, OTHER)) as opened:
            other.join(60)
            assert {EAGER, OTHER} <= opened.keys()
    ((begun, ended),) = held
    assert not [step for step in steps() if begun <= step <= ended], "it computed beside a timing"
    assert [step for step in steps() if step > ended], "the other timing waited for the opening"
    kept = ours.uses.to_json()["opening_arms"]
    assert kept["kept_longest_s"] < 1.0
