"""Processes of several rounds of a record timing open at the same time and compute only in their
round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuagent.arms import CANDIDATE, EAGER
from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.measure.timing import baselines, spares
from cuagent.measure.timing.round_runner import RoundRunner
from cuagent.measure.timing.rounds import LOOKS
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task, memory
from cuagent.timing import Effort, Timing
from cuagent.verify import Referee
from cuagent.worker import ForkServer, Session

pytestmark = pytest.mark.slow

OTHER = f"{EAGER}+tf32"
TASK = """
import time
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return torch.relu(x)

def get_init_inputs():
    return []

def get_inputs():
    return [torch.randn(64, 32)]
"""
CRASH = TASK.replace("time.sleep(0.002)", "import os; os.abort()")


@pytest.fixture(autouse=True)
def _together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "TOGETHER", (Device.CPU,))
    monkeypatch.setattr(memory, "free", lambda _="cpu": 1 << 40)


@pytest.fixture
def referee(tmp_path: Path, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    with Referee(load_task(path, device="cpu"), fork_server=fork_server) as opened:
        yield opened


def attempt(task: str = TASK) -> tuple[Attempt, Build]:
    frozen = Attempt((("model_new.py", task.replace("class Model(", "class ModelNew(")),))
    return frozen, build(frozen, Device.CPU)


class Seen:
    """The processes of the arms of each round, and the states of all others meanwhile."""

    def __init__(self, referee: Referee, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[dict[str, int]] = []
        self.others: list[list[str]] = []
        self.interrupts = False
        plain, living = RoundRunner._repeats, referee.fork_server.living
        self.before = set(living)

        def repeats(runner: RoundRunner, timed_arms: Any, *others: Any) -> Any:
            arms = {name: timed_arm.session.pid for name, timed_arm in timed_arms.items()}
            self.rounds.append(arms)
            idle = set(living) - self.before - set(arms.values())
            self.others.append([state_of(pid) for pid in idle])
            if self.interrupts:
                raise KeyboardInterrupt
            return plain(runner, timed_arms, *others)

        monkeypatch.setattr(RoundRunner, "_repeats", repeats)

    def left(self, referee: Referee) -> set[int]:
        """Return the processes that exist now and did not before."""
        return set(referee.fork_server.living) - self.before


def state_of(pid: int) -> str:
    """Return the state of a process, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def recorded(referee: Referee, task: str = TASK) -> Timing:
    with Timer(referee, (EAGER, OTHER)) as timer:
        timing = timer.time(*attempt(task), Effort.RECORD)
        assert not any(name in timer._baselines.spares for name in (EAGER, OTHER))
        assert timer._candidate.waiting == ()
    return timing


def test_rounds_have_processes_of_their_own_that_compute_only_in_their_round(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(referee, monkeypatch)
    timing = recorded(referee)
    assert timing.ratios.keys() == {EAGER, OTHER}
    assert len(seen.rounds) >= LOOKS.rounds[0]
    for name in (EAGER, OTHER, CANDIDATE):
        used = [arms[name] for arms in seen.rounds]
        assert len(set(used)) == len(used), name
    assert len(seen.others[0]) == 6, "eager's and the candidate's processes of three rounds"
    assert len(seen.others[1]) == 6, "those of two rounds of all arms"
    assert seen.others[3] == []
    assert {state for states in seen.others for state in states} == {"T"}
    assert seen.left(referee) == set()


def test_processes_of_later_rounds_end_with_a_candidate_that_fails(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(referee, monkeypatch)
    candidate = recorded(referee, CRASH).arm(CANDIDATE)
    assert candidate is not None
    assert "SIGABRT" in candidate.failed
    assert seen.left(referee) == set()


def test_processes_of_later_rounds_end_with_an_interrupt(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(referee, monkeypatch)
    seen.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        recorded(referee)
    assert seen.others[0], "there were processes of later rounds"
    assert seen.left(referee) == set()


def test_processes_of_a_large_task_open_round_after_round(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = 2 * 3  # of two rounds, at half a GiB each
    free = int(processes * spares.PROCESS_BYTES / spares.SHARE)
    monkeypatch.setattr(spares, "free_memory", lambda _: free)
    seen = Seen(referee, monkeypatch)
    recorded(referee)
    assert not any(seen.others)
    eager = [arms[EAGER] for arms in seen.rounds]
    assert len(set(eager)) == len(eager)
    monkeypatch.setattr(spares, "free_memory", lambda _: int(1.6 * free))
    assert spares.rounds_at_once(referee, 0, 3) == 3
    monkeypatch.setattr(spares, "free_memory", lambda _: 3 * free)
    assert spares.rounds_at_once(referee, 0, 3) == LOOKS.rounds[0]
    assert spares.rounds_at_once(referee, LOOKS.rounds[0], 3) == LOOKS.rounds[1] - LOOKS.rounds[0]


def test_rounds_open_one_after_another_on_a_host_with_little_memory(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = 2 * 3  # of two rounds
    enough = int(processes * spares.HOST_BYTES / spares.SHARE)
    monkeypatch.setattr(memory, "free", lambda: enough)
    assert spares.rounds_at_once(referee, 0, 3) == 2
    monkeypatch.setattr(memory, "free", lambda: enough - 1)
    assert spares.rounds_at_once(referee, 0, 3) == 1


def test_processes_of_later_rounds_that_cannot_be_stopped_are_ended(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "pause", lambda _: False)
    seen = Seen(referee, monkeypatch)
    timing = recorded(referee)
    assert timing.ratios.keys() == {EAGER, OTHER}
    assert len(seen.others[0]) == 3, "eager's processes of three rounds, which are stopped"
    assert {state for states in seen.others for state in states} == {"T"}


def test_each_round_opens_fresh_baselines_first() -> None:
    assert spares.copies([EAGER, "compile"], {EAGER}, 3) == {
        EAGER: EAGER,
        "compile": "compile",
        f"{EAGER} of round 1": EAGER,
        f"{EAGER} of round 2": EAGER,
    }


def test_baselines_end_the_processes_of_later_rounds(referee: Referee) -> None:
    with Timer(referee, (EAGER,)) as timer:
        session = referee.processes.begin_reference(EAGER)
        timer._baselines.spares.add(EAGER, TimedArm(EAGER, session, 0.0))
    assert session.closed
