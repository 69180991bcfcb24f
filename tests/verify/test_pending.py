"""What is begun while a compiler runs: none of the attempt's code, and nothing that stays."""

from __future__ import annotations

import fcntl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bodies import candidate

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.device_lock import DeviceLock
from cuagent.judge import Judge
from cuagent.measure.timing.rounds import TWIN
from cuagent.sandbox import Tier
from cuagent.task import Device, Task
from cuagent.timing import Effort
from cuagent.verify import Reason, Referee, context
from cuagent.worker import ForkServer, Session
from cuagent.worker.arms import EAGER

HONEST = "return self.honest(x)"


def marking(file: str) -> Attempt:
    """An honest attempt that leaves a file in its folder when it is imported."""
    (name, text), *others = candidate(HONEST).files
    return Attempt(((name, f"open({file!r}, 'w').close()\n{text}"), *others))


def test_no_code_of_an_attempt_runs_before_its_libraries_are_there(referee: Referee) -> None:
    pending = referee.begin(marking("imported"))
    assert pending.session is not None
    folder = pending.session.folder
    time.sleep(0.2)
    assert pending.seeds.drawn
    assert not (folder / "imported").exists()
    pending.session.import_model()
    assert (folder / "imported").exists()
    pending.close()


def test_what_does_not_compile_leaves_no_process_and_the_oracle_at_rest(
    task: Task, referee: Referee
) -> None:
    living = set(referee.fork_server.living)
    assert referee.oracle.is_idle
    broken = Attempt((*candidate(HONEST).files, ("kernels/no.cpp", "int main( {")))
    pending = referee.begin(broken)
    assert not referee.oracle.is_idle
    assert len(referee.fork_server.living) == len(living) + 1
    verdict = referee.complete(pending, build(broken, task.device))
    assert verdict.reason is Reason.BUILD_FAILED
    assert referee.fork_server.living == living
    assert referee.oracle.is_idle


def test_seeds_are_drawn_anew_for_each_source_once_it_is_frozen(referee: Referee) -> None:
    attempt = candidate(HONEST)
    seeds: list[int] = []
    for _ in range(2):
        pending = referee.begin(attempt)
        seeds += pending.seeds.drawn
        pending.close()
    assert len(set(seeds)) == len(seeds) > 40


def test_nothing_is_drawn_beside_a_compiler_that_is_not_confined(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referee, "tier", Tier.NONE)
    pending = referee.begin(candidate(HONEST))
    assert referee.oracle.is_idle
    pending.close()


@pytest.mark.parametrize("room", [0, 1 << 28])
@pytest.mark.parametrize("body", [HONEST, "y = self.honest(x); y[5, 7] += 1e-3; return y"])
def test_what_is_asked_ahead_changes_no_figure(
    task: Task, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, body: str, room: int
) -> None:
    monkeypatch.setitem(context.AHEAD_BYTES, Device.CPU, room)
    attempt = candidate(body)
    built = build(attempt, task.device)
    with Referee(task, fork_server=fork_server) as referee:
        prefetcher = referee.verify(attempt, built)
        again = referee.verify(attempt, built, again=prefetcher)  # asks when it needs something
    assert prefetcher.draws == again.draws
    assert (prefetcher.reason, prefetcher.seeds) == (again.reason, again.seeds)


def test_a_build_of_another_source_is_no_build_of_what_was_frozen(
    task: Task, referee: Referee
) -> None:
    living = set(referee.fork_server.living)
    attempt = candidate(HONEST)
    other = replace(build(attempt, task.device), attempt=candidate("return x").digest)
    with pytest.raises(ValueError, match="another attempt"):
        referee.complete(referee.begin(attempt), other)
    assert referee.fork_server.living == living


def test_a_judge_among_others_makes_no_process_that_it_can_do_without(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_lock, made = DeviceLock(tmp_path / "gpu-0"), list[str]()
    fork, await_ready = ForkServer.fork, Session.await_ready

    def noted(self: ForkServer, program: str, *arguments: Any) -> Any:
        made.append(turn_of(device_lock))
        return fork(self, program, *arguments)

    def awaited(self: Session) -> None:
        await_ready(self)
        made.append(f"ready, {turn_of(device_lock)}")

    def processes(attempt: Attempt) -> int:
        """How many were made, all of them while others may verify."""
        made.clear()
        found = judge.judge(attempt, Effort.GLANCE)
        assert "exclusive" not in made, "for what is made in a timing's turn everybody waits"
        ready = made.count("ready, shared")
        assert ready == found.verdict.accepted, "nothing is still opening when its turn begins"
        return len(made) - ready

    broken = Attempt((*candidate(HONEST).files, ("kernels/no.cpp", "int main( {")))
    with Judge(task, device_lock=device_lock) as judge:
        timer = judge._timer
        timer.set_baselines([EAGER])  # as where torch.compile does not open, and the test is quick
        judge.open()
        monkeypatch.setattr(ForkServer, "fork", noted)
        monkeypatch.setattr(Session, "await_ready", awaited)
        assert processes(broken) == 0
        assert processes(candidate("return self.honest(x) + 1")) == 1
        assert processes(candidate(HONEST)) > 2, "what is right is timed in a process of its own"
        assert not timer.opened(), "eager is opened anew for each timing"
        assert timer._baselines.warm, "what stays open otherwise does so: on a CPU eager's twin"
        assert processes(candidate("return self.honest(x) + 2")) == 1, "nothing waits to be timed"
        timer._baselines.end(TWIN)  # as on a GPU, which has none
        assert processes(candidate(f"y = x\n{HONEST}")) > 2, "there is nothing warm to go by"


def turn_of(device_lock: DeviceLock) -> str:
    """In which this process has the device."""
    assert device_lock.lock is not None
    with device_lock.lock.open("a") as device:
        try:
            fcntl.flock(device, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "exclusive"
        return "shared"
