"""The end of a run: the attempt of record is judged afresh, and the result is said and recorded.

The numbers that selected an attempt are never its result: choosing the best of many noisy
measurements flatters it.
"""

from __future__ import annotations

from cuagent.agent.attended import Interrupted
from cuagent.agent.run import JudgeLost, Run, Tried
from cuagent.agent.stop import Stop
from cuagent.agent.wording import ratios_line
from cuagent.events import Emit, Notice, Phase, RunEnded
from cuagent.measure.timing import Effort, Standing

_WORTH = {
    Standing.FASTER: "",
    Standing.INCONCLUSIVE: "no sure gain: ",
    Standing.SLOWER: "no gain: ",
    None: "no gain: ",
}
UNSCORED = (Stop.INTERRUPTED, Stop.ANSWERED, Stop.MODEL_FAILED, Stop.JUDGE_FAILED)
"""What ended for no reason of the policy's own has no reward, unless an attempt was accepted."""
UNSETTLED = (Stop.INTERRUPTED, Stop.ANSWERED, Stop.JUDGE_FAILED)
"""What ends without judging the best attempt afresh: it may go on, or there is no judge."""


def conclude(run: Run, emit: Emit) -> None:
    """Judge what was not submitted, write the last record and say how it ended."""
    assert run.stop is not None
    if run.best and run.stop not in UNSETTLED and _is_better(run.best, run.final):
        _judge_best(run, run.best, emit)
    result = run.final or run.best
    summary = summarize(run)
    if run.error:
        emit(Notice(run.error, "error"))
    run.end(summary, reward_of(run))
    emit(RunEnded(run.stop, result.judgement if result else None, summary))


def reward_of(run: Run) -> int | None:
    """The milestone reward of the run; None where it says nothing about the policy."""
    result = run.final or run.best
    if result:
        return result.judgement.score.reward
    return None if run.stop in UNSCORED else -1


def summarize(run: Run) -> str:
    """One line: what came of it."""
    result = run.final or run.best
    if result is None:
        tried = len(run.tried)
        return f"no accepted kernel ({tried} attempt{'s' * (tried != 1)})"
    fresh = "measured afresh" if run.final else "measured in the loop only"
    worth = _WORTH[result.judgement.standing]
    return f"{worth}attempt {result.n}, {ratios_line(result.judgement)} ({fresh})"


def _is_better(best: Tried, final: Tried | None) -> bool:
    """A run that went on after its result may have found a better one."""
    return final is None or (best.n != final.n and best.rank > final.rank)


def _judge_best(run: Run, best: Tried, emit: Emit) -> None:
    emit(Phase(f"judging attempt {best.n} afresh"))
    former = run.final
    try:
        judgement = run.measured("record", lambda judge: judge.judge(best.attempt, Effort.RECORD))
    except (KeyboardInterrupt, Interrupted):
        run.notice("interrupted: the figures are those of the loop", "warning")
        return
    except JudgeLost as error:
        run.notice(f"{error}: the figures are those of the loop", "error")
        return
    settled = run.settle(best, judgement)
    if former is not None and former.rank >= settled.rank:
        run.final = former
