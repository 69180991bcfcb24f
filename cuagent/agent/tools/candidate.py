"""The candidate as it lies in the work folder, frozen; shared by the tools that judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuagent.agent.run import JudgeLost, Run
from cuagent.agent.tools.tool import ToolError
from cuagent.attempt import Attempt, AttemptError, freeze
from cuagent.timing import Effort
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.agent.run import Tried
    from cuagent.judge import Judgement


def frozen(run: Run) -> Attempt:
    """The attempt in the work folder. Raises ToolError."""
    try:
        return freeze(run.work)
    except AttemptError as error:
        work = f"{run.work}"
        raise ToolError(str(error).replace(f"{work}/", "").replace(work, "work folder")) from error


def judged(run: Run, attempt: Attempt, effort: Effort) -> Judgement:
    """The judge's word on an attempt; asked again once where it could not say. Raises JudgeLost."""
    for _ in range(2):
        judgement = run.measured("verify", lambda judge: judge.judge(attempt, effort))
        if judgement.verdict.reason is not Reason.INFRASTRUCTURE:
            return judgement
    raise JudgeLost(f"twice nothing could be judged: {judgement.verdict.detail}")


def figures(tried: Tried) -> dict[str, Any]:
    """A judgement as the expert, the views and the record want it.

    Times are seconds per call; ratios are baseline time over candidate time.
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
