"""Freeze and judge the candidate in the work folder; used by several tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuagent.agent.run import JudgeLost, Run
from cuagent.agent.tools.tool import ToolError
from cuagent.attempt import Attempt, AttemptError, freeze
from cuagent.timing import Effort
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.agent.tried import Tried
    from cuagent.judgement import Judgement
    from cuagent.timing import Timing


def frozen(run: Run, *, needs_module: bool = True) -> Attempt:
    """Return the frozen candidate of the work folder. Raises ToolError.

    Without `needs_module` a missing model_new.py is allowed, to compile the kernels only.
    """
    try:
        return freeze(run.work, needs_module=needs_module)
    except AttemptError as error:
        work = f"{run.work}"
        raise ToolError(str(error).replace(f"{work}/", "").replace(work, "work folder")) from error


def judged(run: Run, attempt: Attempt, effort: Effort, than: Timing | None = None) -> Judgement:
    """Judge an attempt; after a failure of the infrastructure once more, then raise JudgeLost.

    With `than`, the timing of an earlier attempt, an attempt that is surely slower is not verified.
    """
    for _ in range(2):
        judgement = run.measured("verify", lambda judge: judge.judge(attempt, effort, than=than))
        if judgement.verdict.reason is not Reason.INFRASTRUCTURE:
            return judgement
    raise JudgeLost(f"judging failed twice: {judgement.verdict.detail}")


def figures(tried: Tried) -> dict[str, Any]:
    """Return an attempt's judgement as plain data for the expert, the views and the log.

    Times are seconds per call; ratios are the baseline's time over the candidate's.
    """
    judgement = tried.judgement
    timing = judgement.timing
    return {
        "attempt": tried.n,
        "accepted": tried.accepted,
        "reason": str(judgement.verdict.reason),
        "detail": judgement.verdict.detail,
        "ratios": {
            name: {"value": r.value, "low": r.low, "high": r.high}
            for name, r in (timing.ratios if timing else {}).items()
        },
        "times": {
            arm.name: arm.median for arm in (timing.arms if timing else ()) if not arm.failed
        },
        "reward": judgement.score.reward,
    }
