"""The best accepted attempt is the result, also after worse submissions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import cuagent.record
from cuagent.agent import Run, Stop, resume_run
from cuagent.agent.conclude import conclude, summarize
from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.events import LadderMeasured, ignore
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Ladder, Rung, gain_of
from cuagent.record import read_records
from cuagent.score import milestone
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.ui.recorded import best_of
from cuagent.verdict import Reason, Verdict

FAST = Attempt((("model_new.py", "fast"),))
SLOW = Attempt((("model_new.py", "slow"),))
EVEN = Ratio(1.0, 1.0, 1.0)


def judged(attempt: Attempt, eager: float, effort: Effort, *, accepted: bool = True) -> Judgement:
    ratios = {"eager": Ratio(eager, 0.95 * eager, 1.05 * eager)}
    arms = (Arm("candidate", 1e-3 / eager, ()), Arm("eager", 1e-3, ()), Arm("compile", 1e-3, ()))
    if effort is Effort.RECORD:
        ratios["compile"] = Ratio(eager / 1.5, 0.93 * eager / 1.5, 1.06 * eager / 1.5)
    free = {"compile": Ratio(1.5, 1.4, 1.6)}
    timing = Timing(arms, ratios, effort, "a CPU", 1.0, free=free)
    reason = Reason.ACCEPTED if accepted else Reason.WRONG_VALUES
    verdict = Verdict(accepted, reason, "", "t", attempt.digest)
    score = milestone(accepted, ratios["eager"].low)
    return Judgement(
        attempt.digest, Build(attempt.digest, (), (), True, 0.1), verdict, timing, score
    )


def test_worse_later_submission_is_not_the_result(run: Run) -> None:
    first = run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    run.settle(first, judged(FAST, 4.2, Effort.RECORD))
    second = run.register(SLOW, judged(SLOW, 0.5, Effort.QUICK))
    run.settle(second, judged(SLOW, 0.45, Effort.RECORD))
    assert run.final is not None
    assert run.final.n == 1
    run.stop = Stop.NO_GAIN
    conclude(run, ignore)
    assert run.stop is Stop.SUBMITTED
    records = read_records(run.folder)
    assert records[-1]["attempt"] == 1
    assert "attempt 1, 4.20x over eager" in records[-1]["summary"]
    best = best_of(records)
    assert best is not None
    assert best.attempt == FAST.digest, "apply and export use the best attempt"


def test_the_best_rung_comes_first_in_the_summary_where_it_is_the_result(run: Run) -> None:
    first = run.register(SLOW, judged(SLOW, 1.0, Effort.QUICK))
    run.settle(first, judged(SLOW, 1.0, Effort.RECORD))  # 0.67x over torch.compile
    eager = Rung("eager", 1e-3, EVEN, 0.0, True, 1.0, None, True)
    faster = Rung("compile", 7e-4, Ratio(1.5, 1.4, 1.6), 0.0, True, 1.0, None, True)
    run.record_ladder(Ladder(run.task.digest, "match", "a CPU", {}, (eager, faster), 1.0))
    summary = summarize(run)
    assert summary.startswith("torch.compile is 1.50x over eager")
    assert "; no gain: attempt 1, 1.00x over eager" in summary, "surely slower than torch.compile"


def test_equal_rung_and_implausible_kernel_are_named_so(run: Run) -> None:
    """A rung whose interval lies between 1.00 and 1.01 is no gain; nothing about it is
    undecided."""
    judgement = judged(FAST, 160.0, Effort.RECORD)
    assert judgement.timing is not None
    equal = {"compile": Ratio(1.0092, 1.0071, 1.0099)}
    floor = Floor(2.7e-3, "compute", 60e-6)
    ratios = judgement.timing.ratios | {"compile": Ratio(160 / 1.0092, 150.0, 170.0)}
    timing = replace(judgement.timing, floor=floor, ratios=ratios, free=equal)
    eager = Rung("eager", 1e-3, EVEN, 0.0, True, 1.0, None, True, effort=Effort.RECORD)
    rung = replace(eager, name="compile", seconds=9.9e-4, over_eager=equal["compile"])
    found = Ladder(run.task.digest, "match", "a GPU", {}, (eager, rung), 1.0)
    run.record_ladder(found)
    first = run.register(FAST, judged(FAST, 160.0, Effort.QUICK))
    run.settle(first, replace(judgement, timing=timing, gain=gain_of(timing, found)))
    summary = summarize(run)
    assert summary.startswith("no gain, because its time is not plausible: attempt 1, 160.00x")
    assert summary.endswith(
        "; no free option is faster; the best is torch.compile: 1.01x over eager [1.01, 1.01] "
        "(equal within 1%)"
    )


def documented_fields() -> dict[str, set[str]]:
    """Return the names that the docstring of `cuagent.record` gives for each type of record."""
    listed = (cuagent.record.__doc__ or "").partition("\n- ")[2].partition("\n\n")[0]
    entries = [entry.partition(":") for entry in listed.split("\n- ")]
    return {kind: set(re.findall(r"\w+", text)) for kind, _, text in entries}


def test_docstring_lists_each_field_of_the_log(run: Run) -> None:
    first = run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    run.settle(first, judged(FAST, 4.2, Effort.RECORD))
    eager = Rung("eager", 1e-3, EVEN, 0.0, True, 1.0, None, True)
    run.record_ladder(Ladder(run.task.digest, "match", "a CPU", {}, (eager,), 1.0))
    run.measured("ladder", lambda judge: None)
    run.stop = Stop.SUBMITTED
    conclude(run, ignore)
    records = read_records(run.folder)
    kinds = {"session", "message", "attempt", "judgement", "ladder", "device", "end"}
    assert kinds <= {record["type"] for record in records}
    documented, common = documented_fields(), {"type", "id", "time", "mac"}
    for record in records:
        missing = record.keys() - documented[record["type"]] - common
        assert not missing, f"{record['type']}: {missing}"


def test_resumed_run_keeps_the_result(run: Run) -> None:
    first = run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    run.settle(first, judged(FAST, 4.2, Effort.RECORD))
    run.log.close()
    again = resume_run(run.folder, run.task, run.judge, model="expert")
    second = again.register(SLOW, judged(SLOW, 0.5, Effort.QUICK))
    again.settle(second, judged(SLOW, 0.45, Effort.RECORD))
    assert again.result is not None
    assert again.result.n == 1
    best = best_of(read_records(run.folder))
    assert best is not None
    assert best.attempt == FAST.digest


def test_better_attempt_is_judged_for_the_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    second = run.register(SLOW, judged(SLOW, 0.5, Effort.QUICK))
    run.settle(second, judged(SLOW, 0.45, Effort.RECORD))
    asked = []

    def measured(what: str, work: Any) -> Judgement:
        asked.append(what)
        return judged(FAST, 3.9, Effort.RECORD)

    monkeypatch.setattr(run, "measured", measured)
    run.stop = Stop.NO_GAIN
    conclude(run, ignore)
    assert asked == ["record"]
    assert "attempt 1, 3.90x over eager" in summarize(run)


@pytest.mark.parametrize(("eager", "judged_again"), [(2.0, True), (0.5, False)])
def test_under_kernels_only_an_attempt_slower_than_a_rung_is_judged_for_the_record(
    run: Run, monkeypatch: pytest.MonkeyPatch, eager: float, judged_again: bool
) -> None:
    """No rung can be the result there, so the attempt must pass all checks of the record."""

    def slower_than_compile(effort: Effort) -> Judgement:
        judgement = judged(FAST, eager, effort)
        assert judgement.timing is not None
        judgement.timing.ratios["compile"] = Ratio(0.4, 0.39, 0.41)
        return judgement

    run.register(FAST, slower_than_compile(Effort.QUICK))
    asked = []

    def measured(what: str, work: Any) -> Judgement:
        asked.append(what)
        return slower_than_compile(Effort.RECORD)

    monkeypatch.setattr(run, "measured", measured)
    run.settles_rung = False
    for kernels_only, expected in ((False, []), (True, ["record"] * judged_again)):
        run.kernels_only, run.stop = kernels_only, Stop.STEP_LIMIT
        conclude(run, ignore)
        assert asked == expected


def test_attempt_that_may_not_exceed_the_result_is_not_judged_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run.register(FAST, judged(FAST, 4.5, Effort.QUICK))
    run.register(SLOW, judged(SLOW, 4.3, Effort.QUICK))
    wide = judged(FAST, 4.2, Effort.RECORD)
    assert wide.timing is not None
    wide.timing.ratios["eager"] = Ratio(4.2, 2.0, 8.8)  # below the quick lower limit of the other
    run.settle(first, wide)
    monkeypatch.setattr(run, "measured", None)
    run.stop = Stop.SUBMITTED
    conclude(run, ignore)
    assert run.result is not None
    assert run.result.n == 1, "a quick timing is no result if there is one of record"


def test_attempt_rejected_for_the_record_is_no_result(run: Run) -> None:
    first = run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    run.settle(first, judged(FAST, 4.2, Effort.RECORD))
    run.settle(first, judged(FAST, 4.2, Effort.RECORD, accepted=False))
    assert run.result is None
    assert best_of(read_records(run.folder)) is None


def test_timing_of_record_sets_the_best_rung(run: Run, events: list[Any]) -> None:
    unsure = Ratio(1.1, 0.8, 1.5)
    eager = Rung("eager", 1e-3, EVEN, 0.0, True, 1.0, None, True)
    compiled = Rung("compile", 0.9e-3, unsure, 0.0, True, 1.0, None, True)
    quick = Ladder(run.task.digest, "match", "a CPU", {}, (eager, compiled), 1.0)
    run.record_ladder(quick)
    assert quick.best == eager
    first = run.register(FAST, judged(FAST, 4.0, Effort.QUICK))
    record = judged(FAST, 4.2, Effort.RECORD)
    run.settle(first, record)
    assert run.ladder is not None
    assert run.ladder.best is not None
    assert run.ladder.best.name == "compile"
    assert record.timing is not None
    gain = gain_of(record.timing, run.ladder)
    assert gain is not None
    assert (gain.rung, round(gain.kernel.value, 2)) == ("compile", 2.8)
    measured = [event for event in events if isinstance(event, LadderMeasured)]
    assert [event.shown for event in measured] == [True, False], (
        "the update is not shown as a second table"
    )
