"""Tests that a task too large for the device is refused in one line before any work."""

from __future__ import annotations

import re

import pytest

from cuagent.cli.exits import Exit, exit_for
from cuagent.measure.timing.timer import Timer
from cuagent.task import Task
from cuagent.verify import Referee
from cuagent.verify.memory_plan import MemoryPlan, TooLarge

GIB = 1 << 30


def test_too_large_verdict_or_timing_is_a_one_line_usage_error(
    task: Task, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.verify.memory_plan.free", lambda device: referee.room.verdict - 1)
    with pytest.raises(TooLarge) as refused:
        Referee(task, fork_server=referee.fork_server)
    told = str(refused.value)
    assert re.fullmatch(
        rf"{task.path}: too large: a verdict needs [\d.]+ KiB of memory on cpu "
        r"\([\d.]+ KiB of inputs and [\d.]+ KiB of outputs per call\), "
        r"but only [\d.]+ KiB are free; use a smaller task",
        told,
    )
    assert exit_for(refused.value) is Exit.USAGE
    with Timer(referee) as timer, pytest.raises(TooLarge, match="a timing of 2 models needs"):
        timer.compare()


def test_softmax_of_6_gib_fits_in_139_gib_but_not_in_80_gib() -> None:
    softmax = MemoryPlan(inputs=6 * GIB, outputs=6 * GIB, precise=12 * GIB)
    assert 80 * GIB < softmax.verdict < 139 * GIB
    assert 80 * GIB < softmax.timing(3) < 139 * GIB
