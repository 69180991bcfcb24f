"""The figures of a record are those of the result that the user gets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.agent import Stop
from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.bench import optimize
from cuagent.bench.certificates import Certification
from cuagent.bench.figures import figures
from cuagent.judgement import Judgement, Result, result_of
from cuagent.measure.rungs import Ladder, Rung, gain_of
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.verdict import Reason, Verdict

GRAPH = "compile+cuda_graph"
ANY: Any = None


def close(value: float) -> Ratio:
    return Ratio(value, value * 0.99, value * 1.01)


def rung(name: str, over_eager: float) -> Rung:
    ratio = close(over_eager) if name != EAGER else Ratio(1.0, 1.0, 1.0)
    return Rung(name, 1 / over_eager, ratio, 1e-7, True, 1.0, None, True)


def ladder(**over_eager: float) -> Ladder:
    rungs = (rung(EAGER, 1.0), *(rung(name, ratio) for name, ratio in over_eager.items()))
    return Ladder("task", "match", "gpu", {}, rungs, 1.0, floor=Floor(0.01, "memory", 0.01))


def judged(found: Ladder, over_eager: float) -> Judgement:
    ratios = {r.name: close(over_eager * r.seconds) for r in found.rungs}
    arms = (Arm(CANDIDATE, 1 / over_eager, (1 / over_eager,)),)
    timing = Timing(arms, ratios, Effort.QUICK, "gpu", 1.0, floor=found.floor)
    verdict = Verdict(True, Reason.ACCEPTED, "", "t", "digest")
    return Judgement("digest", ANY, verdict, timing, ANY, gain_of(timing, found))


def made(
    judgement: Judgement | None, found: Ladder, *, kernels_only: bool = False
) -> dict[str, Any]:
    given = result_of(judgement, found, kernels_only=kernels_only)
    return figures(judgement, found, Certification((), "elementwise", 1, ()), None, given)


def value(ratio: dict[str, float] | None) -> float | None:
    return None if ratio is None else round(ratio["value"], 2)


def test_attempt_that_is_slower_than_a_free_option_is_not_the_result() -> None:
    found = ladder(**{COMPILE: 1.5, GRAPH: 6.96})
    record = made(judged(found, 2.81), found)
    assert {name: value(ratio) for name, ratio in record["ratios"].items()} == {
        "eager": 6.96,
        "compile": 4.64,
        "best_rung": 1.0,
        "free": 6.96,
    }
    over_compile = record["ratios"]["compile"]
    assert over_compile["low"] == pytest.approx(6.96 * 0.99 / (1.5 * 1.01)), "the wider limits"
    assert value(record["attempt_ratios"]["best_rung"]) == 0.4
    assert record["roofline_share"] == pytest.approx(0.01 * 6.96)
    assert "kernel" not in record["parts"]


def test_under_kernels_only_the_attempt_is_the_result_although_a_rung_is_faster() -> None:
    found = ladder(**{COMPILE: 1.5, GRAPH: 6.96})
    record = made(judged(found, 2.81), found, kernels_only=True)
    assert {name: value(ratio) for name, ratio in record["ratios"].items()} == {
        "eager": 2.81,
        "compile": 1.87,
        "best_rung": 0.4,
        "free": 6.96,
    }
    assert record["attempt_ratios"] is None
    assert record["roofline_share"] == pytest.approx(0.01 * 2.81)


def test_kernel_keeps_its_own_ratios() -> None:
    found = ladder(**{COMPILE: 1.5})
    record = made(judged(found, 3.0), found)
    assert [value(record["ratios"][name]) for name in ("eager", "compile")] == [3.0, 2.0]
    assert record["attempt_ratios"] is None
    assert record["parts"]["kernel"] == pytest.approx(2.0)


def test_attempt_that_beats_nothing_has_no_ratio_of_a_result() -> None:
    found = ladder()
    record = made(judged(found, 1.005), found)
    assert "eager" not in record["ratios"]
    assert value(record["attempt_ratios"]["eager"]) == 1.0
    assert record["roofline_share"] is None


@pytest.mark.parametrize(
    ("rungs", "over_eager", "stop", "status", "status_of_kernels_only"),
    [
        ({GRAPH: 6.96}, 2.81, Stop.TIME_LIMIT, "free option", "kernel"),
        ({GRAPH: 6.96}, 1.005, Stop.SUBMITTED, "free option", "no gain"),
        ({GRAPH: 6.96}, None, Stop.TIME_LIMIT, "free option", "no kernel"),
        ({GRAPH: 6.96}, None, Stop.JUDGE_FAILED, "failed", "failed"),
        ({GRAPH: 1.5}, 3.0, Stop.TIME_LIMIT, "kernel", "kernel"),
        ({}, 1.005, Stop.SUBMITTED, "no gain", "no gain"),
        ({}, None, Stop.SUBMITTED, "no kernel", "no kernel"),
    ],
)
def test_status_names_what_the_user_gets(
    rungs: dict[str, float],
    over_eager: float | None,
    stop: Stop,
    status: str,
    status_of_kernels_only: str,
) -> None:
    found = ladder(**rungs)
    judgement = judged(found, over_eager) if over_eager else None
    tried = SimpleNamespace(judgement=judgement, n=1) if judgement else None
    run: Any = SimpleNamespace(
        result=tried,
        ladder=found,
        tried=[tried] * bool(tried),
        settled=(),
        error="",
        messages=[],
        kernels_only=False,
    )
    result = optimize._status(run, stop, result_of(judgement, found))
    assert result.name == status
    if status == "free option":
        assert f"{GRAPH} is 6.96x over eager" in result.reason
    run.kernels_only = True
    by_kernels_only = optimize._status(run, stop, result_of(judgement, found, kernels_only=True))
    assert by_kernels_only.name == status_of_kernels_only


def test_implausible_time_is_no_result_under_kernels_only() -> None:
    found = ladder(**{COMPILE: 1.5})
    judgement = judged(found, 3.0)
    assert judgement.timing is not None
    suspect = replace(judgement, timing=replace(judgement.timing, floor=Floor(0.9, "memory", 0.9)))
    assert suspect.timing is not None
    assert suspect.timing.suspect
    assert result_of(suspect, found, kernels_only=True) is Result.MODULE
