"""Rungs that do not open in time end, and are not opened again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.measure import task_ladder
from cuagent.measure.rungs import Ladder
from cuagent.measure.task_ladder import JOINED_RUNGS, OPENING_S, TaskLadder
from cuagent.measure.timing.ahead import Patience
from cuagent.task import Device

SLOW, QUICK = "max-autotune", "compile+channels_last"


class Timer:
    """A timer in which the rung SLOW never opens."""

    shared_device = False

    def __init__(self, large: bool = False) -> None:
        task = SimpleNamespace(device=Device.CUDA)
        self.referee: Any = SimpleNamespace(task=task, large=large)
        self.opened: list[str] = []
        self.ended: list[str] = []
        self.waited_s: list[float] = []

    def open_ahead(self, names: Any, *, at_last: bool = False) -> None:
        if at_last or not self.referee.large:
            self.opened += [name for name in names if name not in self.opened]

    def still_opening(self, names: Any, patience: Patience) -> tuple[str, ...]:
        self.waited_s.append(patience.seconds)
        assert patience.opening_s == OPENING_S[Device.CUDA]
        return (SLOW,) if SLOW in names else ()

    def give_up(self, names: Any) -> None:
        self.ended += names

    def keep(self, names: Any) -> None: ...

    def release(self, names: Any) -> None: ...


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("more", [0, JOINED_RUNGS])
def test_a_rung_that_did_not_open_in_time_is_not_opened_again(
    more: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `more` rungs the whole ladder is timed again, in place of joining the new ones."""
    timer, wanted = Timer(large), (SLOW, QUICK, *(f"rung {n}" for n in range(more)))
    asked: list[set[str]] = []

    def measured(_: Any, *, without: Any = (), **options: Any) -> Ladder:
        if options["whole"]:
            asked.append(set(wanted) - set(without))
        return Ladder("", "match", "", {}, (), 0.0, later=(SLOW,) if options["whole"] else wanted)

    def joined(_: Any, found: Ladder, names: Any) -> Ladder:
        asked.append(set(names))
        return replace(found, later=(SLOW,))

    monkeypatch.setattr(task_ladder, "measure_ladder", measured)
    monkeypatch.setattr(task_ladder, "join_rungs", joined)
    compiler: Any = None
    made: Any = timer
    ladder = TaskLadder(made, compiler, baselines=(), fresh=False, before_timing=lambda: None)
    ladder.measure()
    ladder.open_later_rungs()
    assert not timer.opened if large else set(timer.opened) >= set(wanted)
    for _ in range(2):
        assert ladder.measure(whole=True, wait_s=0.1).later == (SLOW,)
    assert asked == [set(wanted) - {SLOW}]
    assert set(timer.opened) >= set(wanted)
    assert timer.waited_s == [0.2 if large else 0.1]
    assert timer.ended == [SLOW]
    assert ladder._unopened == ()


@pytest.mark.parametrize(
    ("device", "shared", "opened"),
    [
        (Device.CUDA, False, ["reduce-overhead"]),
        (Device.CUDA, True, []),
        (Device.CPU, False, []),
    ],
)
def test_first_rungs_open_before_the_ladder_only_on_a_gpu_of_one_judge(
    device: Device, shared: bool, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = Timer()
    timer.shared_device = shared
    task = type("Task", (), {"device": device})()
    timer.referee = SimpleNamespace(task=task, large=False)
    fresh: list[bool] = []

    def to_open(_: Any, **options: Any) -> tuple[str, ...]:
        fresh.append(options["fresh"])
        return ("reduce-overhead",)

    monkeypatch.setattr(task_ladder, "rungs_to_open", to_open)
    compiler: Any = None
    made: Any = timer
    ladder = TaskLadder(made, compiler, baselines=(), fresh=True, before_timing=lambda: None)
    ladder.open_first_rungs()
    assert timer.opened == opened
    assert fresh == [True] * len(opened)
