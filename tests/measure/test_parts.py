"""Timings in parts: the baselines of each part, and the merged timing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.timing.parts import fit_together, is_final, merge, parts_of
from cuagent.task import Device
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.verify import memory_plan
from cuagent.verify.memory_plan import MemoryPlan

ROOM = MemoryPlan(inputs=6, outputs=6, precise=12)


def referee(large: bool) -> Any:
    return SimpleNamespace(large=large, room=ROOM, task=SimpleNamespace(device=Device.CPU))


def timing(*arms: Arm, ratios: dict[str, Ratio], **more: Any) -> Timing:
    return Timing(arms, ratios, Effort.QUICK, "device", 2.0, **more)


def arm(name: str, seconds: float, failed: str = "") -> Arm:
    return Arm(name, seconds, (seconds,), failed=failed)


def test_parts_of_is_one_part_if_all_models_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "free", lambda _: 10 * ROOM.timing(3))
    assert parts_of(referee(large=True), (EAGER, COMPILE), True) == [(EAGER, COMPILE)]


def test_parts_of_splits_a_large_task_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        memory_plan, "free", lambda _: ROOM.timing(3)
    )  # too little: allocators need more
    assert parts_of(referee(large=True), (EAGER, COMPILE), True) == [(EAGER,), (COMPILE,)]
    assert parts_of(referee(large=False), (EAGER, COMPILE), True) == [(EAGER, COMPILE)]
    rungs = (EAGER, COMPILE, "graphs")
    assert parts_of(referee(large=True), rungs, False) == [(EAGER, COMPILE), (EAGER, "graphs")]
    assert parts_of(referee(large=True), (EAGER, COMPILE), False) == [(EAGER, COMPILE)]


def test_models_of_a_large_task_open_together_where_their_first_calls_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = ROOM.timing(5) + 4 * ROOM.opening
    assert ROOM.opening >= ROOM.inputs + ROOM.outputs
    monkeypatch.setattr(memory_plan, "free", lambda _: 1.2 * needed)
    assert fit_together(referee(large=True), 4, 5)
    monkeypatch.setattr(memory_plan, "free", lambda _: needed)
    assert not fit_together(referee(large=True), 4, 5)
    assert fit_together(referee(large=False), 4, 5)


def test_merge_takes_each_ratio_from_one_part() -> None:
    first = timing(arm(CANDIDATE, 1.0), arm(EAGER, 2.0), ratios={EAGER: Ratio(2.0, 1.9, 2.1)})
    second = timing(
        arm(CANDIDATE, 1.5), arm(COMPILE, 1.2), ratios={COMPILE: Ratio(0.8, 0.7, 0.9)}, busy=0.5
    )
    whole = merge([first, second])
    assert [a.name for a in whole.arms] == [CANDIDATE, EAGER, COMPILE]
    assert whole.arm(CANDIDATE) == arm(CANDIDATE, 1.0)
    assert whole.ratios == first.ratios | second.ratios
    assert (whole.seconds, whole.busy) == (4.0, 0.5)


def test_merge_keeps_a_failure_and_a_wrong_output_of_any_part() -> None:
    well = timing(arm(CANDIDATE, 1.0), arm(EAGER, 2.0), ratios={EAGER: Ratio(2.0, 1.9, 2.1)})
    crashed = timing(arm(CANDIDATE, 1.0, "SIGSEGV"), arm(COMPILE, 1.2), ratios={})
    wrong = timing(arm(CANDIDATE, 1.0), arm(COMPILE, 1.2), ratios={}, wrong="call 2 was wrong")
    failed = merge([well, crashed]).arm(CANDIDATE)
    assert failed is not None
    assert failed.failed == "SIGSEGV"
    assert merge([well, wrong]).refused == "call 2 was wrong"
    assert [is_final(part) for part in (well, crashed, wrong)] == [False, True, True]
