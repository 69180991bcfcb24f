"""One referee for all tests, and what it says of a candidate that is given as a body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bodies import REFERENCE, candidate

from cuagent.build import build
from cuagent.task import Task, load_task
from cuagent.verify import Referee, Verdict


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
    """The verdict on a forward given as its body."""

    def judge(body: str) -> Verdict:
        attempt = candidate(body)
        return referee.verify(attempt, build(attempt, task.device))

    return judge
