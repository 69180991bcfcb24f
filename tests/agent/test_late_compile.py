"""A run begins before torch.compile has compiled a large graph, and says if it was not compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.agent import ladder as module
from cuagent.agent.ladder import FIRST_WAIT_S, measure_remaining_rungs, start_at_ladder
from cuagent.agent.stop import Stop
from cuagent.arms import COMPILE, EAGER
from cuagent.durations import Durations
from cuagent.events import ignore
from cuagent.measure.rungs import Ladder
from cuagent.task import Device
from cuagent.timing import Ratio

PARTIAL = Ladder("", "match", "", {}, (), 0.0, later=(COMPILE,))


def run_with(**fields: Any) -> Any:
    notices: list[str] = []
    judge = SimpleNamespace(asked=[])

    def measure_ladder(**options: Any) -> Ladder:
        judge.asked.append(options)
        return PARTIAL

    judge.measure_ladder = measure_ladder
    run = SimpleNamespace(
        ladder=None,
        stop=None,
        best=None,
        task=SimpleNamespace(device=Device.CUDA),
        judge=judge,
        notices=notices,
        emit=ignore,
        durations=Durations(),
        add=lambda *_: None,
        notice=notices.append,
        measured=lambda what, work: work(judge),
        record_ladder=lambda *_, **__: None,
    )
    vars(run).update(fields)
    return run


def test_the_first_step_waits_for_the_rungs_only_for_some_seconds() -> None:
    run: Any = run_with()
    start_at_ladder(run, SimpleNamespace())  # type: ignore[arg-type]
    assert run.judge.asked == [{"whole": False, "wait_s": FIRST_WAIT_S[Device.CUDA]}]


@pytest.mark.parametrize(("timed", "told"), [((EAGER,), True), ((EAGER, COMPILE), False)])
def test_a_missing_comparison_is_named_when_time_is_up(timed: Any, told: bool) -> None:
    ratios = dict.fromkeys(timed, Ratio(2.0, 2.0, 2.0))
    best = SimpleNamespace(judgement=SimpleNamespace(timing=SimpleNamespace(ratios=ratios)))
    run = run_with(ladder=PARTIAL, stop=Stop.TIME_LIMIT, best=best)
    measure_remaining_rungs(run)
    assert not run.judge.asked
    assert [COMPILE in notice for notice in run.notices] == [True] * told


def test_a_rung_that_did_not_open_is_named() -> None:
    run = run_with(ladder=PARTIAL)
    measure_remaining_rungs(run)
    assert run.judge.asked == [{"whole": True, "wait_s": module.WAIT_S[Device.CUDA]}]
    assert len(run.notices) == 1
    assert run.notices[0].startswith(f"{COMPILE}: not compiled in time")
