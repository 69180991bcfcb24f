"""A model prepares itself while the task is examined."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.cli.session import _preparing


class Preparing:
    """A model whose preparation begins, and then waits for `released`."""

    def __init__(self) -> None:
        self.begun, self.released, self.done = (threading.Event() for _ in range(3))

    def prepare(self) -> None:
        self.begun.set()
        assert self.released.wait(10.0)
        self.done.set()


def judge(*, large: bool = False) -> Any:
    return SimpleNamespace(referee=SimpleNamespace(large=large))


def test_the_preparation_runs_beside_the_block_and_after_it() -> None:
    model: Any = Preparing()
    with _preparing(model, judge()):
        assert model.begun.wait(10.0)
    assert not model.done.is_set()
    model.released.set()
    assert model.done.wait(10.0)


def test_a_refused_task_waits_for_the_preparation() -> None:
    model: Any = Preparing()

    def refuse() -> None:
        with _preparing(model, judge()):
            assert model.begun.wait(10.0)
            threading.Timer(0.2, model.released.set).start()
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    assert model.done.is_set()


def test_other_models_and_large_tasks_prepare_nothing_early() -> None:
    model: Any = Preparing()
    for each, opened in ((SimpleNamespace(), judge()), (model, judge(large=True))):
        with _preparing(each, opened):
            pass
    assert not model.begun.is_set()


def test_a_failed_preparation_is_left_to_the_next_one() -> None:
    tried = threading.Event()

    def prepare() -> None:
        tried.set()
        raise RuntimeError("no graph")

    model: Any = SimpleNamespace(prepare=prepare)
    with _preparing(model, judge()):
        assert tried.wait(10.0), "the error stays in its thread"
