"""baseline: how fast the reference is, eager and compiled, before anything is written.

The reference is judged as its own candidate: verified, and timed beside the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.candidate import judged
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.agent.wording import NAMES, duration
from cuagent.attempt import ENTRY, MODULE, Attempt
from cuagent.measure.timing import Arm, Effort


def baseline(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    text = f"{run.task.source.rstrip()}\n\n\n{ENTRY} = {run.task.entry}\n"
    judgement = judged(run, Attempt(((MODULE, text),)), Effort.QUICK)
    timing = judgement.timing
    if timing is None:
        why = judgement.verdict.detail or judgement.verdict.reason
        raise ToolError(f"the reference cannot be timed: {why}")
    arms = [arm for arm in timing.arms if arm.name in NAMES]
    times = {arm.name: arm.median for arm in arms if not arm.failed}
    lines = [_line(arm, times.get("eager")) for arm in arms]
    return ToolResult("\n".join(lines), {"times": times})


def _line(arm: Arm, eager: float | None) -> str:
    name = NAMES[arm.name]
    if arm.failed:
        return f"{name}: failed: {arm.failed}"
    over = f", {eager / arm.median:.2f}x over eager" if eager and arm.name != "eager" else ""
    return f"{name}: {duration(arm.median)}{over}"


TOOL = Tool("baseline", schema(), baseline)
