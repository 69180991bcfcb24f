"""Binding of a timed process, and of everything it starts, to the processors of all arms."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure import system_load
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.timing import Effort
from cuagent.verify import Referee
from cuagent.worker import ForkServer

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
STARTS_MORE = """
import os, threading, torch

def turn():
    while True:
        pass

if os.fork() == 0:  # while it is imported
    turn()
threading.Thread(target=turn, daemon=True).start()

class ModelNew(torch.nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            torch.set_num_threads(8)  # a team that OpenMP makes in its first region
            os.fork() or (os.setsid(), threading.Thread(target=turn).start(), turn())
        return torch.relu(x)
"""
LEAVES = """
import os, torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        os.sched_setaffinity(0, range(os.cpu_count()))
        return torch.relu(x)
"""
PROCESSORS = os.sched_getaffinity(0)


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path_factory.mktemp("processors") / "task.py"
    path.write_text(TASK)
    task = load_task(path, inputs="f32[512,512]", device="cpu")
    with Referee(task, isolation="none", fork_server=fork_server) as opened:
        yield opened


def ticks(pids: set[int]) -> int:
    """Return the ticks of processor time that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(used) for field in fields for used in field[11:13])


def test_threads_and_processes_of_a_candidate_stay_bound_and_suspended(
    referee: Referee,
) -> None:
    core = {min(PROCESSORS)}
    attempt = Attempt((("model_new.py", STARTS_MORE),))
    batch = referee.batches.create(1)
    with referee.processes.waiting(attempt, cores=core) as session:
        referee.processes.finish_candidate(session, build(attempt, Device.CPU))
        for _ in range(4):
            session.block(batch.lent, batch.outputs_of("candidate"), [(0, 0)], deadline_s=120)
        family = system_load._tree(session.pid)
        threads = [int(task.name) for p in family for task in Path(f"/proc/{p}/task").iterdir()]
        assert len(family) == 3
        assert len(threads) >= 2 + 7 + 3, "its OpenMP team is missing"
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset(core)}
        assert system_load.threads_outside(session.pid, core) == 0
        before = ticks(family)
        time.sleep(0.1)
        assert ticks(family) == before, "one of its processes ran between blocks"
        if len(PROCESSORS) > 1:
            os.sched_setaffinity(threads[-1], PROCESSORS)
            assert system_load.threads_outside(session.pid, core) == 1
    referee.batches.discard(batch)


@pytest.mark.slow
def test_arms_are_bound_to_one_processor_for_each_thread(
    referee: Referee, fork_server: ForkServer
) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, fork_server.threads - 1))
    try:
        with Timer(referee, ("eager",)) as timer:
            timer.compare(Effort.GLANCE)
            held = os.sched_getaffinity(timer.opened()["eager"].session.pid)
    finally:
        torch.set_num_threads(before)
    assert len(held) == min(fork_server.threads, len(PROCESSORS))


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.skipif(len(PROCESSORS) < 2, reason="needs a second processor")
def test_candidate_that_leaves_its_processors_has_no_ratio(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_load, "cores_for", lambda threads: {min(PROCESSORS)})
    attempt = Attempt((("model_new.py", LEAVES),))
    with Timer(referee, ("eager",)) as timer:
        timing = timer.time(attempt, build(attempt, Device.CPU), Effort.GLANCE)
    assert "left the processors" in timing.contradiction
    assert not timing.ratios
