"""Tests that no process of a session runs between commands, inside or outside its group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.task import Device, Precision, flatten
from cuagent.worker import Arena, ForkServer, ModelSpec, Session, layout_of, suspend

BUSY = """
import os, threading, time
import torch

def count(x):
    while True:
        x.add_(1)
        time.sleep(0.001)

def work(x):
    {work}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = None
    def forward(self, x):
        if self.before is None:
            self.before = 0.0
            work(x)
        elif {resumes}:
            self.before = x.item() + 1
        while x.item() <= self.before:  # a busy machine may let the process run late
            time.sleep(0.001)
        return x.clone()
"""
WAYS = {
    "a thread": "threading.Thread(target=count, args=(x,), daemon=True).start()",
    "a child": "os.fork() or count(x)",
    "a child of its own group": "os.fork() or (os.setsid(), count(x))",
    "a child that wakes it": (
        "threading.Thread(target=count, args=(x,), daemon=True).start();"
        "os.fork() or (os.setsid(), [os.kill(os.getppid(), 18) for _ in iter(int, 1)])"
    ),
    "a daemon": "os.fork() or (os.setsid(), os.fork() and os._exit(0), count(x))",
    "a daemon of a thread": (
        "threading.Thread(target=lambda: os.fork() or (os.fork() and os._exit(0), count(x)))"
        ".start()"
    ),
}


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    layout = layout_of([torch.zeros(1)])
    inputs, outputs = (Arena.create(layout, 1, "cpu") for _ in range(2))
    inputs.memory.zero_()
    yield inputs, outputs
    inputs.close()
    outputs.close()


@pytest.mark.parametrize("way", WAYS)
def test_processes_are_stopped_between_commands(
    fork_server: ForkServer, arenas: tuple[Arena, Arena], way: str
) -> None:
    inputs, outputs = arenas
    _, spec = flatten([torch.zeros(1)])
    order = ModelSpec(
        arm=CANDIDATE,
        device=Device.CPU,
        precision=Precision.MATCH,
        inputs=spec,
        output=flatten(torch.zeros(1))[1],
        state=(),
        init=flatten([[], {}])[1],
        seed=1,
    )
    source = BUSY.format(work=WAYS[way], resumes="daemon" not in way)
    attempt = Attempt((("model_new.py", source),))
    weights = Arena.create(layout_of([]), 1, "cpu")
    with Session.open(fork_server, order, attempt) as session:
        session.load(weights)
        session.run(inputs, outputs, [(0, 0)], deadline_s=60)
        (counter,) = inputs.tensors()
        before = float(counter)
        time.sleep(0.1)
        assert before >= 1, "the process never ran"
        assert float(counter) <= before + 1, "the process was not stopped"
        pid = session.pid
        # A call that waits for a process that was not resumed exceeds its time limit.
        session.run(inputs, outputs, [(0, 0)], deadline_s=60)
        assert "daemon" in way or float(counter) > before + 1
    assert not Path(f"/proc/{pid}").exists()
    weights.close()


HOG = "import os\nos.sched_setaffinity(0, [{first}])\nwhile True: pass"
SPIN = """
import os, threading, time
os.sched_setaffinity(0, [{first}])
def spin():
    os.sched_setaffinity(0, [{last}])
    print("spins", flush=True)
    while True: pass
threading.Thread(target=spin, daemon=True).start()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True: time.sleep(1e-3)
"""
"""A process whose main thread, which takes the signal, waits for the processor of `HOG`."""


def test_threads_are_stopped_on_a_busy_machine() -> None:
    first, last = (*sorted(os.sched_getaffinity(0)), -1)[:2]
    if last < 0:
        pytest.skip("needs two processors")
    hog, process = (
        subprocess.Popen(
            [sys.executable, "-c", text.format(first=first, last=last)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for text in (HOG, SPIN)
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"spins\n"
        for _ in range(10):
            assert suspend.stop(process.pid, process.pid, ()) == set()
            threads = Path(f"/proc/{process.pid}/task").iterdir()
            states = [(t / "stat").read_text().rpartition(")")[2].split()[0] for t in threads]
            assert states == ["T", "T"]
            suspend.resume(process.pid, ())
    finally:
        for started in (hog, process):
            started.kill()
            started.communicate()
