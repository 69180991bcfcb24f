"""Rungs that do not open in time end, and are not opened again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.arms import EAGER
from cuagent.measure import task_ladder
from cuagent.measure.rungs import Ladder, Rung, without_pointless
from cuagent.measure.task_ladder import JOINED_RUNGS, OPENING_S, TaskLadder
from cuagent.measure.timing.ahead import Patience
from cuagent.task import Device
from cuagent.timing import Ratio

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


TUNED = "compile+cudnn_benchmark"
LATE = (TUNED, "compile+channels_last", "max-autotune-no-cudagraphs")


def convolution(gains: dict[str, float]) -> Ladder:
    """Return the first ladder of a convolution: eager's time over that of each other rung."""
    rungs = [
        Rung(name, 1 / gain, Ratio(gain, gain * 0.993, gain * 1.007), 0.0, True, 1.0, None, True)
        for name, gain in ({EAGER: 1.0} | gains).items()
    ]
    return Ladder("", "match", "", {}, tuple(rungs), 0.0, later=LATE)


@pytest.mark.parametrize(
    ("alone", "last", "kept"),
    [(1.0, 0.93, False), (0.9, 0.85, False), (1.04, 0.93, True), (1.0, 0.96, True)],
)
def test_cudnn_benchmark_is_not_compiled_if_it_gains_nothing_in_eager_code(
    alone: float, last: float, kept: bool
) -> None:
    """L1/57 (H200): the rung opened for the record timing and took 1.00 times compile's time."""
    found = convolution(
        {
            "compile": 1.02,
            "eager+channels_last": 0.93,
            "eager+cudnn_benchmark": alone,
            "eager+channels_last+cudnn_benchmark": last,
        }
    )
    left = without_pointless(found)
    assert (TUNED in left.later) == kept
    assert left.later[-2:] == LATE[1:], "compiled code gains otherwise by another layout"
    assert any(TUNED in note for note in left.notes) != kept


def test_cudnn_benchmark_stays_if_its_gain_is_not_known() -> None:
    known = {"eager+cudnn_benchmark": 1.0, "eager+channels_last": 0.93}
    assert TUNED in without_pointless(convolution({})).later
    assert TUNED in without_pointless(convolution(known)).later
    one_dimension = {"eager+cudnn_benchmark": 1.0}
    assert TUNED not in without_pointless(convolution(one_dimension)).later


def test_a_rung_that_cannot_gain_is_neither_opened_nor_named_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = Timer()
    first = convolution({"eager+cudnn_benchmark": 1.0})
    joined: list[tuple[str, ...]] = []

    def join(_: Any, found: Ladder, names: Any) -> Ladder:
        joined.append(tuple(names))
        return replace(found, later=())

    monkeypatch.setattr(task_ladder, "measure_ladder", lambda *_, **__: first)
    monkeypatch.setattr(task_ladder, "join_rungs", join)
    compiler: Any = None
    made: Any = timer
    ladder = TaskLadder(made, compiler, baselines=(), fresh=False, before_timing=lambda: None)
    assert ladder.measure().later == LATE[1:]
    ladder.open_later_rungs()
    assert ladder.measure(whole=True, wait_s=0.1).later == ()
    assert joined == [LATE[1:]]
    assert TUNED not in timer.opened
