"""End a run: judge the best attempt again for the record, then report and record the result.

The measurements that selected an attempt are never its result, because the best of many noisy
measurements is biased upwards. If no kernel beats the best free option, the best rung is the
result. An attempt that surely or very likely loses is not judged again. In a run of `kernels_only`
no rung can be the result, so there only an attempt that loses to eager is not judged again.
"""

from __future__ import annotations

from cuagent.agent.attended import Interrupted
from cuagent.agent.ladder import HURRIED, confirm_rung, measure_remaining_rungs
from cuagent.agent.run import JudgeLost, Run
from cuagent.agent.stop import Stop
from cuagent.agent.tried import Tried
from cuagent.agent.wording import NAMES, ratio_over, ratios_line
from cuagent.events import Emit, Notice, Phase, RunEnded
from cuagent.judgement import Judgement, Result, free_of, result_of
from cuagent.measure.rungs import Ladder
from cuagent.timing import Effort, Standing

_PREFIX = {
    Standing.FASTER: "",
    Standing.INCONCLUSIVE: "no sure gain: ",
    Standing.SLOWER: "no gain: ",
    None: "no gain: ",
}
UNSCORED = (Stop.INTERRUPTED, Stop.ANSWERED, Stop.MODEL_FAILED, Stop.JUDGE_FAILED)
"""Stops that the policy (the model) did not cause.

A run that ended by one has no reward, unless an attempt was accepted.
"""
UNSETTLED = (Stop.INTERRUPTED, Stop.ANSWERED, Stop.JUDGE_FAILED)
"""Stops after which the best attempt is not judged again for the record.

Such a run may continue, or its judge failed.
"""

MOST_AFRESH = 3
"""Largest number of attempts that are judged for the record at the end of a run.

If the best attempt turns out worse, the next best is judged too.
"""


def conclude(run: Run, emit: Emit) -> None:
    """Judge the best attempt for the record if needed, write the last log record, and emit
    RunEnded.
    """
    assert run.stop is not None
    shown = run.stop
    if run.ended is not None and run.stop in (Stop.ANSWERED, Stop.INTERRUPTED):
        run.stop = run.ended
    if run.error:
        emit(Notice(run.error, "error"))
    if shown not in UNSETTLED:
        _settle(run, emit)
        _note_unpriced(run)
    result = run.result
    if run.stop is Stop.NO_GAIN and result is not None and result.judgement.is_faster:
        run.stop = Stop.SUBMITTED
    summary = summarize(run)
    run.end(summary, reward_of(run))
    emit(RunEnded(shown, result.judgement if result else None, summary, run.ladder))


def _note_unpriced(run: Run) -> None:
    """Tell the user that calls without a known price did not count towards the cost limit."""
    limit, unpriced = run.budget.cost, run.unpriced_calls
    if limit is not None and unpriced:
        calls = "1 call" if unpriced == 1 else f"{unpriced} calls"
        text = f"the cost limit of ${limit:g} did not count {calls} without a known price"
        run.notice(text, "warning")


def reward_of(run: Run) -> int | None:
    """Return the milestone reward of the run; None if the policy did not cause the stop."""
    result = run.result
    if result:
        return result.judgement.score.reward
    return None if run.stop in UNSCORED else -1


def result_judgement(run: Run) -> Judgement | None:
    """Return the judgement on the best accepted attempt, the one at record effort if it exists.

    None if no attempt was accepted.
    """
    result = run.result
    return result.judgement if result else None


def summarize(run: Run) -> str:
    """Return the result of the run as one line of text. A rung that beat the best attempt comes
    before it."""
    kind = result_of(result_judgement(run), run.ladder, kernels_only=run.kernels_only)
    if run.ladder is None or kind is Result.KERNEL:
        return _attempt_line(run)
    if kind is Result.RUNG and run.result is not None:
        return f"{_free_line(run)}; {_attempt_line(run)}"
    return f"{_attempt_line(run)}; {_free_line(run)}"


def _free_line(run: Run) -> str:
    """Return a text on the best rung's speedup over eager, for the summary.

    If no rung is clearly faster than eager, name the one that may be.
    """
    found = run.ladder
    free = free_of(result_judgement(run), found)
    rung = found.chosen if found is not None else None
    if rung is None or free is None:
        return _undecided_line(found)
    over = ratio_over("eager", free)
    if free.is_equal:
        return f"no free option is faster; the best is {NAMES.get(rung.name, rung.name)}: {over}"
    if free.standing is not Standing.FASTER:
        return f"{NAMES.get(rung.name, rung.name)} is undecided: {over}"
    how = "" if rung.effort is Effort.RECORD else " (quick timing)"
    return f"{NAMES.get(rung.name, rung.name)} is {over}{how}"


def _undecided_line(found: Ladder | None) -> str:
    unsure = found.undecided if found is not None else None
    if unsure is None or unsure.over_eager is None:
        return "no free option beats the module"
    name = NAMES.get(unsure.name, unsure.name)
    over = ratio_over("eager", unsure.over_eager)
    if unsure.over_eager.value < 1:
        return f"no free option is surely faster; {name} is undecided: {over}"
    return f"could not tell whether {name} is faster: {over}"


def _attempt_line(run: Run) -> str:
    result = run.result
    if result is None:
        tried = len(run.tried)
        if not tried:
            return "no kernel tried"
        return f"no kernel accepted ({tried} tried)"
    judgement = result.judgement
    fresh = "measured afresh" if result.n in run.settled else "measured in the loop only"
    prefix = _PREFIX[Standing.SLOWER if judgement.slower_than else judgement.standing]
    if judgement.is_faster and judgement.gain is not None:
        prefix = _PREFIX[judgement.gain.kernel.standing].replace(":", " on top:")
    if judgement.timing is not None and judgement.timing.suspect:
        prefix = "no gain, because its time is not plausible: "
    return f"{prefix}attempt {result.n}, {ratios_line(judgement)} ({fresh})"


def _settle(run: Run, emit: Emit) -> None:
    """Judge the best attempt for the record; if no kernel can be the result, time the best rung
    again.
    """
    try:
        for _ in range(1 if run.stop in HURRIED else MOST_AFRESH):
            best = run.next_to_settle
            if best is None or run.rival_of(best):
                break
            if not best.judgement.loses_to:
                measure_remaining_rungs(run, best.attempt)
            _judge_best(run, best, emit)
        no_kernel = run.settles_rung and _has_no_kernel(run)
        if no_kernel and run.ladder is not None and run.stop not in UNSCORED:
            measure_remaining_rungs(run)
            found = run.ladder
            is_open = found.undecided or found.untimed or result_of(None, found) is Result.RUNG
            if is_open and found.effort is Effort.QUICK:
                confirm_rung(run)
    except (KeyboardInterrupt, Interrupted):
        run.notice("interrupted: the figures are those of the loop", "warning")
    except JudgeLost as error:
        run.notice(f"{error}: the figures are those of the loop", "error")


def _has_no_kernel(run: Run) -> bool:
    """Return True if no attempt can be the result of the run.

    Either none was accepted, or the best one surely loses to a baseline and was not judged for the
    record.
    """
    best = run.result
    return best is None or (best.n not in run.settled and bool(best.judgement.loses_to))


def _judge_best(run: Run, best: Tried, emit: Emit) -> None:
    emit(Phase(f"judging attempt {best.n} again for the record"))
    judgement = run.measured("record", lambda judge: judge.judge(best.attempt, Effort.RECORD))
    run.settle(best, judgement)
