"""Fixtures for tests of the verifier: one referee for all tests, and functions that verify a
candidate given by the body of its forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bodies import REFERENCE, candidate
from regimes import Regime

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task, load_task
from cuagent.verify import Referee, Verdict
from cuagent.worker import ForkServer


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take ten times as long for all calls of a verdict. Tests of the limit set
    their own."""
    monkeypatch.setattr("cuagent.verify.referee.VERDICT_S", 600.0)


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path: Path = tmp_path_factory.mktemp("task") / "rms_linear.py"
    path.write_text(REFERENCE)
    return load_task(str(path), device="cpu")


@pytest.fixture(scope="session")
def referee(task: Task) -> Iterator[Referee]:
    with Referee(task, call_s=5.0) as opened:
        yield opened


@pytest.fixture
def judged(task: Task, referee: Referee) -> Callable[[str], Verdict]:
    """Return a function that verifies a candidate, given the body of its forward."""

    def judge(body: str) -> Verdict:
        attempt = candidate(body)
        return referee.verify(attempt, build(attempt, task.device))

    return judge


@pytest.fixture(scope="session")
def regime_referee(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Callable[[Regime], Referee]]:
    """Return a function that returns the referee of a regime's task; all candidates for a task
    share one referee."""
    opened: dict[str, Referee] = {}
    folder: Path = tmp_path_factory.mktemp("regimes")

    def of(regime: Regime) -> Referee:
        if regime.task not in opened:
            path = folder / f"task_{len(opened)}.py"
            path.write_text(regime.task)
            task = load_task(str(path), device="cpu")
            opened[regime.task] = Referee(task, call_s=10.0, fork_server=fork_server)
        return opened[regime.task]

    yield of
    for referee in opened.values():
        referee.close()


@pytest.fixture
def regime_verdict(
    regime_referee: Callable[[Regime], Referee],
) -> Callable[[Regime, str], Verdict]:
    """Return a function that verifies a candidate for a regime's task, given the body of its
    forward."""

    def judge(regime: Regime, forward: str) -> Verdict:
        referee = regime_referee(regime)
        attempt = Attempt((("model_new.py", regime.module("ModelNew", forward)),))
        return referee.verify(attempt, build(attempt, referee.task.device))

    return judge
