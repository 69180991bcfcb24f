"""Baselines' processes between timings: which are ended, and that they end together."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.device_lock import DeviceLock
from cuagent.events import ignore
from cuagent.measure.timing import baselines as module
from cuagent.measure.timing.baselines import Baselines
from cuagent.measure.timing.candidate_process import CandidateProcess
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.task import Device

NAMES = ("eager", "compile", "late")
NO_PROCESS = 10**9


@pytest.fixture
def referee() -> Any:
    return SimpleNamespace(task=SimpleNamespace(device=Device.CUDA), large=True)


@pytest.fixture
def baselines(referee: Any) -> Baselines:
    made = Baselines(referee, NAMES, ignore, DeviceLock())
    for name in NAMES:
        made._warm[name] = TimedArm(name, session(), opened_s=1.0)
    return made


def session() -> Any:
    made = SimpleNamespace(pid=NO_PROCESS, closed=False)
    made.close = lambda: setattr(made, "closed", True)
    return made


def test_only_processes_that_were_timed_are_renewed(baselines: Baselines) -> None:
    """A rung that opened for the record timing opened a second time before its first round."""
    sessions = {name: arm.session for name, arm in baselines._warm.items()}
    baselines.renew(5.0)
    assert baselines.opened().keys() == set(NAMES)
    baselines.note_timed(["candidate", "eager", "compile"])
    baselines.renew(0.5)
    assert baselines.opened().keys() == set(NAMES), "they took a second to open"
    baselines.renew(5.0)
    assert baselines.opened().keys() == {"late"}
    assert [name for name, made in sessions.items() if made.closed] == ["eager", "compile"]
    baselines.note_timed(["late"])
    baselines.renew(5.0)
    assert baselines.opened() == {}


def test_all_processes_are_killed_before_the_first_is_waited_for(baselines: Baselines) -> None:
    processes = [subprocess.Popen(["sleep", "600"], process_group=0) for _ in NAMES]
    ended: list[list[int | None]] = []
    for process, arm in zip(processes, baselines._warm.values(), strict=True):
        made: Any = arm.session
        made.pid = process.pid
        made.close = lambda: ended.append([process.wait(60) for process in processes])
    baselines.set_baselines(())
    assert ended == [[-9] * len(NAMES)] * len(NAMES)
    assert baselines.opened() == {}


def test_processes_that_ended_before_are_not_killed(
    baselines: Baselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    for number, arm in enumerate(baselines._warm.values()):
        made: Any = arm.session
        made.pid, made.closed = number, number == 1
    baselines.close()
    assert killed == [0, 2], "another process may have the id of one that was closed"


@pytest.mark.parametrize(
    ("large", "fits", "missing", "early"),
    [
        (False, False, 0, True),
        (True, True, 2, True),
        (True, False, 2, False),
        (True, True, 0, False),
    ],
)
def test_candidate_of_a_large_task_starts_with_the_baselines_if_they_open_together(
    large: bool,
    fits: bool,
    missing: int,
    early: bool,
    baselines: Baselines,
    referee: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    referee.large = large
    referee.processes = SimpleNamespace(waiting=lambda *_, **__: session())
    monkeypatch.setattr(module, "fit_together", lambda *_: fits)
    for name in NAMES[:missing]:
        baselines.end(name)
    candidate = CandidateProcess(referee, baselines)
    attempt: Any = "attempt"
    candidate.begin(attempt)
    assert bool(candidate.waiting) == early
