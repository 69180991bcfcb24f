"""The work of a task is counted once, in the background if it was begun there."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.measure.roofline import count as module
from cuagent.measure.timing import timer
from cuagent.measure.timing.timer import Timer
from cuagent.task import TaskError

TASK: Any = SimpleNamespace(digest="test_count_ahead")
SERVER: Any = None


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_counted", {})


def test_a_count_waits_for_the_one_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released, counts = threading.Event(), threading.Event(), []

    def counted(*_: Any) -> Any:
        begun.set()
        assert released.wait(10.0)
        counts.append(1)
        return "work", "fp32"

    monkeypatch.setattr(module, "_count", counted)
    module.count_ahead(TASK, SERVER)
    assert begun.wait(10.0)
    threading.Timer(0.2, released.set).start()
    assert module.count(TASK, SERVER) == ("work", "fp32")
    assert counts == [1]


def test_a_failure_in_the_background_is_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, counts = threading.Event(), []

    def counted(*_: Any) -> Any:
        counts.append(1)
        failed.set()
        raise TaskError("no memory")

    monkeypatch.setattr(module, "_count", counted)
    module.count_ahead(TASK, SERVER)
    assert failed.wait(10.0)
    with pytest.raises(TaskError, match="no memory"):
        module.count(TASK, SERVER)
    assert counts == [1, 1]


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_is_counted_ahead_beside_other_judges(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(timer, "count_ahead", lambda *given: asked.append(given))
    referee = SimpleNamespace(task=TASK, fork_server=SERVER)
    Timer.count_ahead(SimpleNamespace(shared_device=shared, referee=referee))  # type: ignore[arg-type]
    assert asked == [] if shared else [(TASK, SERVER)]
