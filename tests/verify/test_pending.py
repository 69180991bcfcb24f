"""Tests of verdicts that start during compilation: no candidate code runs and no process
remains."""

from __future__ import annotations

import fcntl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bodies import candidate

from cuagent.arms import EAGER
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.device_lock import DeviceLock, Sharing
from cuagent.judge import LocalJudge
from cuagent.measure.timing.rounds import TWIN
from cuagent.overlap import Prewarm
from cuagent.sandbox import Tier
from cuagent.task import Device, Task
from cuagent.timing import Effort
from cuagent.verify import Reason, Referee, context
from cuagent.worker import ForkServer, Session

HONEST = "return self.honest(x)"


def marking(file: str) -> Attempt:
    """Return an honest attempt that creates a file in its folder when it is imported."""
    (name, text), *others = candidate(HONEST).files
    return Attempt(((name, f"open({file!r}, 'w').close()\n{text}"), *others))


def test_no_candidate_code_runs_before_the_libraries_exist(referee: Referee) -> None:
    pending = referee.begin(marking("imported"))
    assert pending.session is not None
    folder = pending.session.folder
    time.sleep(0.2)
    assert pending.seeds.drawn
    assert not (folder / "imported").exists()
    pending.session.import_model()
    assert (folder / "imported").exists()
    pending.close()


def test_failed_build_leaves_no_process_and_an_idle_oracle(task: Task, referee: Referee) -> None:
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


def test_each_verdict_draws_new_seeds(referee: Referee) -> None:
    attempt = candidate(HONEST)
    seeds: list[int] = []
    for _ in range(2):
        pending = referee.begin(attempt)
        seeds += pending.seeds.drawn
        pending.close()
    assert len(set(seeds)) == len(seeds) > 40


def test_oracle_stays_idle_without_a_sandbox(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referee, "tier", Tier.NONE)
    pending = referee.begin(candidate(HONEST))
    assert referee.oracle.is_idle
    pending.close()


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1 << 28])
@pytest.mark.parametrize("body", [HONEST, "y = self.honest(x); y[5, 7] += 1e-3; return y"])
def test_prefetching_does_not_change_results(
    task: Task, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, body: str, room: int
) -> None:
    monkeypatch.setitem(context.AHEAD_BYTES, Device.CPU, room)
    attempt = candidate(body)
    built = build(attempt, task.device)
    with Referee(task, fork_server=fork_server) as referee:
        prefetched = referee.verify(attempt, built)
        again = referee.verify(attempt, built, again=prefetched)  # without prefetching
    assert prefetched.draws == again.draws
    assert (prefetched.reason, prefetched.seeds) == (again.reason, again.seeds)


def test_build_of_another_attempt_is_rejected(task: Task, referee: Referee) -> None:
    living = set(referee.fork_server.living)
    attempt = candidate(HONEST)
    other = replace(build(attempt, task.device), attempt=candidate("return x").digest)
    with pytest.raises(ValueError, match="another attempt"):
        referee.complete(referee.begin(attempt), other)
    assert referee.fork_server.living == living


def test_a_verdict_gives_way_while_no_process_of_it_computes(
    task: Task, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Session] = []
    import_model = Session.import_model

    def noted(self: Session, *arguments: Any) -> None:
        sessions.append(self)
        import_model(self, *arguments)

    def give_way() -> None:
        computing.append(any(session._in_command for session in sessions))

    computing: list[bool] = []
    monkeypatch.setattr(Session, "import_model", noted)
    attempt = candidate(HONEST)
    sharing = Sharing(give_way, lambda: False)
    verdict = referee.verify(attempt, build(attempt, task.device), sharing=sharing)
    assert verdict.accepted
    assert sessions
    assert len(computing) > 5, "a timing would wait for the whole verdict"
    assert not any(computing)


@pytest.mark.slow
def test_shared_judge_creates_no_unneeded_process(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_lock, made = DeviceLock(tmp_path / "gpu-0"), list[str]()
    fork = ForkServer.fork

    def noted(self: ForkServer, program: str, *arguments: Any) -> Any:
        made.append(turn_of(device_lock))
        return fork(self, program, *arguments)

    def processes(attempt: Attempt) -> int:
        """Return the number of new processes, all created while others may verify."""
        made.clear()
        judge.judge(attempt, Effort.GLANCE)
        assert "exclusive" not in made, "no process may be created under the exclusive lock"
        return len(made)

    broken = Attempt((*candidate(HONEST).files, ("kernels/no.cpp", "int main( {")))
    # Without torch.compile, to keep the test quick.
    with LocalJudge(task, device_lock=device_lock, baselines=[EAGER]) as judge:
        timer = judge._timer
        judge.open()
        monkeypatch.setattr(ForkServer, "fork", noted)
        assert processes(broken) == 0
        assert processes(candidate("return self.honest(x) + 1")) == 1
        assert processes(candidate(HONEST)) > 2, "an accepted attempt is timed in a new process"
        assert not timer.opened(), "eager must be opened anew for each timing"
        assert timer._baselines.warm, "eager's twin must stay open on a CPU"
        assert processes(candidate("return self.honest(x) + 2")) == 1, "no timing process is needed"
        timer._baselines.end(TWIN)  # as on a GPU, which has no twin
        assert processes(candidate(f"y = x\n{HONEST}")) > 2, "no process is warm"


@pytest.mark.slow
def test_timing_uses_the_processes_that_open_while_the_attempt_is_built(
    task: Task, fork_server: ForkServer
) -> None:
    with LocalJudge(task, fork_server=fork_server, baselines=[EAGER]) as judge:
        judge.overlap = replace(judge.overlap, prewarm=Prewarm.WHILE_BUILDING)  # as on a GPU

        def eager_after(body: str) -> tuple[bool, int]:
            accepted = judge.judge(candidate(body), Effort.GLANCE).verdict.accepted
            return accepted, judge._timer.opened()[EAGER].session.pid

        first = eager_after(HONEST)
        living = len(fork_server.living)
        rejected = eager_after("return self.honest(x) + 1")
        assert len(fork_server.living) == living, "the process of the rejected attempt remains"
        last = eager_after(f"y = x\n{HONEST}")
    assert (first[0], rejected[0], last[0]) == (True, False, True)
    assert first[1] != rejected[1], "eager opens anew while the attempt is built"
    assert rejected[1] == last[1], "the timing uses it"


def turn_of(device_lock: DeviceLock) -> str:
    """Return how this process holds the device lock: "shared" or "exclusive"."""
    assert device_lock.lock is not None
    with device_lock.lock.open("a") as device:
        try:
            fcntl.flock(device, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "exclusive"
        return "shared"
