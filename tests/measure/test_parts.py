"""Timings in parts: which baselines go together, and what comes of the parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.measure.timing import parts as rooms
from cuagent.measure.timing.parts import is_last, parts, together
from cuagent.task import Device
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.worker.arms import CANDIDATE, COMPILE, EAGER

ROOM = MemoryPlan(inputs=6, outputs=6, precise=12)


def referee(large: bool) -> Any:
    return SimpleNamespace(large=large, room=ROOM, task=SimpleNamespace(device=Device.CPU))


def timing(*arms: Arm, ratios: dict[str, Ratio], **more: Any) -> Timing:
    return Timing(arms, ratios, Effort.QUICK, "device", 2.0, **more)


def arm(name: str, seconds: float, failed: str = "") -> Arm:
    return Arm(name, seconds, (seconds,), failed=failed)


def test_all_arms_go_together_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "free", lambda _: 10 * ROOM.timing(3))
    assert parts(referee(large=True), (EAGER, COMPILE), True) == [(EAGER, COMPILE)]


def test_a_large_task_without_room_is_timed_against_one_baseline_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rooms, "free", lambda _: ROOM.timing(3))  # allocators keep more
    assert parts(referee(large=True), (EAGER, COMPILE), True) == [(EAGER,), (COMPILE,)]
    assert parts(referee(large=False), (EAGER, COMPILE), True) == [(EAGER, COMPILE)]
    rungs = (EAGER, COMPILE, "graphs")
    assert parts(referee(large=True), rungs, False) == [(EAGER, COMPILE), (EAGER, "graphs")]
    assert parts(referee(large=True), (EAGER, COMPILE), False) == [(EAGER, COMPILE)]


def test_parts_make_one_timing_whose_ratios_are_each_of_one_part() -> None:
    first = timing(arm(CANDIDATE, 1.0), arm(EAGER, 2.0), ratios={EAGER: Ratio(2.0, 1.9, 2.1)})
    second = timing(
        arm(CANDIDATE, 1.5), arm(COMPILE, 1.2), ratios={COMPILE: Ratio(0.8, 0.7, 0.9)}, busy=0.5
    )
    whole = together([first, second])
    assert [a.name for a in whole.arms] == [CANDIDATE, EAGER, COMPILE]
    assert whole.arm(CANDIDATE) == arm(CANDIDATE, 1.0)
    assert whole.ratios == first.ratios | second.ratios
    assert (whole.seconds, whole.busy) == (4.0, 0.5)


def test_what_went_wrong_in_a_part_is_wrong_in_the_whole() -> None:
    well = timing(arm(CANDIDATE, 1.0), arm(EAGER, 2.0), ratios={EAGER: Ratio(2.0, 1.9, 2.1)})
    crashed = timing(arm(CANDIDATE, 1.0, "SIGSEGV"), arm(COMPILE, 1.2), ratios={})
    wrong = timing(arm(CANDIDATE, 1.0), arm(COMPILE, 1.2), ratios={}, wrong="call 2 was wrong")
    failed = together([well, crashed]).arm(CANDIDATE)
    assert failed is not None
    assert failed.failed == "SIGSEGV"
    assert together([well, wrong]).refused == "call 2 was wrong"
    assert [is_last(part) for part in (well, crashed, wrong)] == [False, True, True]
